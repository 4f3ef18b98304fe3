from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
import torch
from cli.conftest import TEMPLATE, save_model
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from ptd_engine.drafters import make_drafter
from ptd_engine.engine import Engine
from ptd_engine.model import CausalLM
from ptd_engine.runner import EagerRunner
from ptd_engine.tensor_parallel import TensorParallel, start
from ptd_engine.testing import tiny

CONTEXT = 128
VOCABULARY = 259  # odd: the ranks' parts of the output matrix differ in size

Start = Callable[..., AbstractContextManager[TensorParallel]]
EngineOver = Callable[[TensorParallel | CausalLM, str], Engine]


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A model directory of a family, with a tokenizer of one token a byte."""
    made: dict[str, Path] = {}

    def directory(family: str) -> Path:
        if family not in made:
            path = made[family] = tmp_path_factory.mktemp(family) / "model"
            tiny.save(tiny.build(family, seed=3, vocab_size=VOCABULARY), path)
            pieces = sorted(pre_tokenizers.ByteLevel.alphabet())
            backend = Tokenizer(models.BPE(vocab={p: i for i, p in enumerate(pieces)}, merges=[]))
            backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
            backend.decoder = decoders.ByteLevel()
            backend.add_special_tokens(["<|s|>", "<|t|>", "<|u|>"])
            PreTrainedTokenizerFast(tokenizer_object=backend).save_pretrained(path)
        return made[family]

    return directory


@pytest.fixture(scope="session")
def chat_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with a chat template."""
    return save_model(tmp_path_factory.mktemp("chat") / "tiny", TEMPLATE)


@pytest.fixture
def parallel(model_dir: Callable[[str], Path]) -> Start:
    """Two ranks over a family's model, ended with the block."""

    @contextmanager
    def started(
        family: str, kernels: str = "torch", timeout_s: float = 60.0
    ) -> Iterator[TensorParallel]:
        ranks = start(
            model_dir(family),
            2,
            dtype="float32",
            device=torch.device("cpu"),
            kernels=kernels,
            max_seq_len=CONTEXT,
            num_threads=1,
            timeout_s=timeout_s,
        )
        try:
            yield ranks
        finally:
            ranks.close()

    return started


@pytest.fixture
def engine_over() -> EngineOver:
    """An engine over these ranks, or over one model."""
    return _engine_over


def _engine_over(ranks: TensorParallel | CausalLM, drafter: str) -> Engine:
    made = make_drafter(drafter, device_type="cpu", eos_ids=())
    needs = made.needs()
    sizes = {"max_seq_len": CONTEXT, "max_nodes": 1 + needs.max_nodes, "top_k": needs.top_k}
    if isinstance(ranks, TensorParallel):
        runner: EagerRunner = ranks.make_runner(ranks.model, **sizes)
    else:
        runner = EagerRunner(ranks, **sizes)
    return Engine(runner, made, max_seq_len=CONTEXT, vocab_size=VOCABULARY)
