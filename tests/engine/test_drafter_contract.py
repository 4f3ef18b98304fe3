"""What a drafter may ask of a session besides rows: a cap on credit, the prompt's outputs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from ptd_engine import _core
from ptd_engine.config import SamplingParams
from ptd_engine.engine import Engine
from ptd_engine.model import CausalLM, load_model
from ptd_engine.runner import EagerRunner
from ptd_engine.testing.forced import FixedTrees, chain
from ptd_engine.testing.toy import ToyRunner

PROMPT = [3, 4, 5, 6, 7]


class CappedTrees(FixedTrees):
    """The trees of `FixedTrees`, credited up to two accepted candidates."""

    def needs(self) -> _core.DrafterNeeds:
        return _core.DrafterNeeds(super().needs().max_nodes, max_accepted=2)


@pytest.mark.parametrize(
    ("verification", "lazily"), [("coupled", False), ("coupled", True), ("recursive", False)]
)
def test_a_cap_on_credit_cuts_steps_never_the_output(
    tiny_llama: CausalLM, verification: str, lazily: bool
) -> None:
    model = tiny_llama
    params = SamplingParams(
        max_new_tokens=12,
        temperature=0.0 if verification == "coupled" else 0.7,
        top_k=1 if verification == "recursive" else 0,  # then its law is a point, like greedy's
        verification=verification,  # type: ignore[arg-type]
        logits_processor=(lambda prefix, logits: logits) if lazily else None,
    )

    def decode(drafter: _core.Drafter) -> tuple[list[int], tuple[int, ...]]:
        runner = EagerRunner(model, max_seq_len=64, max_nodes=1 + drafter.needs().max_nodes)
        engine = Engine(runner, drafter, max_seq_len=64, vocab_size=model.config.vocab_size)
        generation = engine.generate(PROMPT, params)
        for _ in generation:
            pass
        return generation.token_ids, generation.stats.acceptance_histogram

    plain, _ = decode(_core.AutoregressiveDrafter())
    # Step i begins behind token 3i + 1 or 5i + 1 of the output: offer the right continuation.
    free = FixedTrees(*(chain(*plain[i : i + 4]) or chain(1) for i in range(0, 12, 5)))
    capped = CappedTrees(*(chain(*plain[i : i + 4]) or chain(1) for i in range(0, 12, 3)))
    assert decode(free) == (plain, (0, 0, 1, 0, 2))
    assert decode(capped) == (plain, (0, 0, 4))


class Listener(_core.Drafter):
    """Proposes nothing and keeps what it is told of the prompt."""

    def __init__(self, top_k: int) -> None:
        super().__init__()
        self.top_k = top_k
        self.heard: list[tuple[int, npt.NDArray[np.int32]]] = []

    def needs(self) -> _core.DrafterNeeds:
        return _core.DrafterNeeds(0, top_k=self.top_k, prompt_outputs=True)

    def begin(self, prompt: list[int]) -> None:
        self.heard.clear()

    def propose(self, committed: list[int], tree: _core.TreeBuilder) -> None:
        pass

    def observe(self, outcome: _core.StepOutcome) -> None:
        pass

    def observe_prompt(self, first: int, outputs: npt.NDArray[np.int32]) -> None:
        self.heard.append((first, outputs))


@pytest.mark.parametrize("kernels", ["torch", "cpu"])
def test_the_prompts_outputs_are_those_of_decoding_it(
    tiny_dir: Callable[[str], Path], kernels: str
) -> None:
    model = load_model(tiny_dir("llama3"), dtype="float32", max_seq_len=64, kernels=kernels)
    listener = Listener(top_k=3)
    runner = EagerRunner(model, max_seq_len=64, max_nodes=2, top_k=3, prefill_chunk=3)
    engine = Engine(runner, listener, max_seq_len=64, vocab_size=model.config.vocab_size)
    list(engine.generate(PROMPT, SamplingParams(max_new_tokens=1)))
    firsts = [first for first, _ in listener.heard]
    assert firsts == [0, 2, 3]  # parts of at most two rows, of chunks of three
    outputs = np.concatenate([part for _, part in listener.heard])
    assert outputs.shape == (4, 4)
    assert (outputs[:, 0] == outputs[:, 1]).all()
    for end in range(1, len(PROMPT)):
        generation = engine.generate(PROMPT[:end], SamplingParams(max_new_tokens=1))
        list(generation)
        assert generation.token_ids == [outputs[end - 1, 0]]


def test_a_kept_prefix_is_not_shown_again() -> None:
    listener = Listener(top_k=1)
    runner = ToyRunner(lambda context: context[-1] + 1, max_seq_len=64, top_k=1)
    engine = Engine(runner, listener, max_seq_len=64, vocab_size=64, reuse_prefix=True)
    list(engine.generate(PROMPT, SamplingParams(max_new_tokens=2)))
    assert [(first, out[:, 0].tolist()) for first, out in listener.heard] == [(0, [4, 5, 6, 7])]
    list(engine.generate([*PROMPT[:3], 20, 21], SamplingParams(max_new_tokens=2)))
    assert [(first, out[:, 0].tolist()) for first, out in listener.heard] == [(3, [21])]


def test_outputs_of_other_rows_are_refused() -> None:
    session = _core.Session(PROMPT, Listener(0), max_seq_len=64)
    with pytest.raises(_core.InvalidArgument, match=r"len\(outputs\)=3"):
        session.observe_prompt(2, np.zeros((3, 1), np.int32))
    session.observe_prompt(2, np.zeros((2, 1), np.int32))
    session.plan(np.zeros(session.plan_bytes, np.uint8))
    with pytest.raises(RuntimeError, match="after a plan"):
        session.observe_prompt(2, np.zeros((2, 1), np.int32))
