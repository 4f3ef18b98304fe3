"""The CPU kernels' promise, bit for bit: a row does not depend on the other rows, on the tree, on
the chunking or on the number of threads. So drafting equals plain decoding in every dtype.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from engine.conftest import CONTEXT, finish, make_engine
from torch import Tensor

from ptd_engine import _core
from ptd_engine.config import SamplingParams
from ptd_engine.kv_cache import KVCache
from ptd_engine.model import CausalLM, ForwardBuffers, load_model
from ptd_engine.testing.compare import tree_mask

DTYPES = ("float32", "bfloat16", "int8", "int4")
ISAS = tuple(name for name, reason in _core.cpu_isas().items() if not reason)
PREFIX = 43  # crosses the edges of the kernels' tiles together with the tree behind it
MODES = {
    "greedy": SamplingParams(max_new_tokens=70),
    "sampled": SamplingParams(max_new_tokens=70, temperature=0.8, seed=7),
    "filtered": SamplingParams(max_new_tokens=70, temperature=1.0, top_k=30, top_p=0.9, seed=3),
}

Load = Callable[..., CausalLM]


@pytest.fixture(scope="module")
def load(tiny_dir: Callable[[str], Path]) -> Load:
    loaded: dict[tuple[object, ...], CausalLM] = {}

    def get(dtype: str, isa: str = "", threads: int = 2, family: str = "llama32") -> CausalLM:
        key = (dtype, isa, threads, family)
        if key not in loaded:
            kernels = f"cpu:{isa}" if isa else "cpu"
            loaded[key] = load_model(
                tiny_dir(family),
                dtype=dtype,
                kernels=kernels,
                max_seq_len=CONTEXT,
                num_threads=threads,
            )
        return loaded[key]

    return get


class Text:
    """A cache and buffers of their own for one text."""

    def __init__(self, model: CausalLM) -> None:
        config = model.config
        self.model = model
        self.cache = KVCache(
            config.num_layers,
            config.num_kv_heads,
            CONTEXT + 64,
            config.head_dim,
            model.dtype,
            "cpu",
        )
        self.cache.k.fill_(float("nan"))  # what nobody wrote must not matter
        self.cache.v.fill_(float("nan"))
        self.buffers = ForwardBuffers.allocate(config, CONTEXT, model.dtype, "cpu")

    def run(
        self, tokens: Sequence[int], at: int, parents: Sequence[int] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Hidden states and logits of these tokens behind `at` cached ones; a chain without
        parents.
        """
        depths = list(range(len(tokens)))
        mask = None
        if parents is not None:
            depths = []
            for parent in parents:
                depths.append(0 if parent < 0 else depths[parent] + 1)
            mask = tree_mask(list(parents))
        hidden = self.model.forward(
            torch.tensor(tokens, dtype=torch.int32),
            torch.tensor([at + depth for depth in depths], dtype=torch.int32),
            mask,
            torch.tensor([at], dtype=torch.int32),
            at + len(tokens),
            self.cache,
            self.buffers,
        ).clone()
        logits = torch.empty(len(tokens), self.model.config.vocab_size, dtype=torch.float32)
        return hidden, self.model.logits(hidden, logits)


def random_tree(n: int, seed: int) -> tuple[list[int], list[int]]:
    """Tokens and parents."""
    dice = random.Random(seed)
    parents = [-1, *(dice.randrange(max(0, i - 6), i) for i in range(1, n))]
    return [dice.randrange(3, 97) for _ in range(n)], parents


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("isa", ISAS)
def test_a_tree_row_is_the_same_text_decoded_token_by_token(
    load: Load, dtype: str, isa: str
) -> None:
    model = load(dtype, isa)
    prompt = [random.Random(1).randrange(3, 97) for _ in range(PREFIX)]
    tokens, parents = random_tree(40, seed=2)
    tree = Text(model)
    tree.run(prompt, 0)
    hidden, logits = tree.run(tokens, PREFIX, parents)
    for node in range(0, len(tokens), 3):
        path = [node]
        while parents[path[0]] >= 0:
            path.insert(0, parents[path[0]])
        plain = Text(model)
        for position, token in enumerate(prompt):
            plain.run([token], position)
        for depth, on_path in enumerate(path):
            alone, alone_logits = plain.run([tokens[on_path]], PREFIX + depth)
        assert torch.equal(alone[0], hidden[node])
        assert torch.equal(alone_logits[0], logits[node])
        written = tree.cache.k[:, :, PREFIX + node]
        assert torch.equal(written, plain.cache.k[:, :, PREFIX + len(path) - 1])


@pytest.mark.parametrize("dtype", DTYPES)
def test_chunks_and_threads_change_nothing(load: Load, dtype: str) -> None:
    tokens = [random.Random(4).randrange(3, 97) for _ in range(100)]
    whole = Text(load(dtype))
    expected, expected_logits = whole.run(tokens, 0)
    for threads in (1, 2, 4):
        pieces = Text(load(dtype, threads=threads))
        at = 0
        for size in (1, 31, 33, 35):
            hidden, logits = pieces.run(tokens[at : at + size], at)
            assert torch.equal(hidden, expected[at : at + size])
            assert torch.equal(logits, expected_logits[at : at + size])
            at += size
        assert torch.equal(pieces.cache.k[:, :, :100], whole.cache.k[:, :, :100])
        assert torch.equal(pieces.cache.v[:, :, :100], whole.cache.v[:, :, :100])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", ["llama32", "qwen3"])
def test_drafting_equals_plain_decoding_in_every_dtype(
    load: Load, family: str, dtype: str, mode: str
) -> None:
    model = load(dtype, family=family)
    for prompt in ([5, 9, 11, 3, 9, 11, 3, 9], [42], list(range(3, 33))):
        expected = finish(make_engine(model, "none"), prompt, MODES[mode])
        got = finish(make_engine(model), prompt, MODES[mode])
        assert got.token_ids == expected.token_ids
        assert expected.stats.steps == len(expected.token_ids)


@pytest.mark.parametrize("isa", ISAS)
def test_every_instruction_set_drafts_losslessly(load: Load, isa: str) -> None:
    for dtype in DTYPES:
        model = load(dtype, isa)
        expected = finish(make_engine(model, "none"), [42], MODES["sampled"])
        assert finish(make_engine(model), [42], MODES["sampled"]).token_ids == expected.token_ids
