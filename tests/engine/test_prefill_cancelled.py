"""A request that is cancelled while its prompt runs leaves the engine after one part of it."""

from __future__ import annotations

from typing import Any

from engine.conftest import CONTEXT, make_engine

from ptd_engine import SamplingParams
from ptd_engine.engine import Engine
from ptd_engine.model import CausalLM
from ptd_engine.runner import EagerRunner

PROMPT = [3 + i % 70 for i in range(40)]
PARAMS = SamplingParams(max_new_tokens=12)


def engine_in_parts(model: CausalLM, parts: list[int], **settings: Any) -> Engine:
    """An engine that runs prompts 8 rows at a time and notes how far each came."""

    class Runner(EagerRunner):
        def prefill(self, token_ids: Any, **where: Any) -> int:
            parts.append(super().prefill(token_ids, **where))
            return parts[-1]

    runner = Runner(model, max_seq_len=CONTEXT, max_nodes=1, prefill_chunk=8)
    plain = make_engine(model, "none")
    return Engine(
        runner, plain.drafter, max_seq_len=CONTEXT, vocab_size=plain.vocab_size, **settings
    )


def test_a_prefill_ends_at_the_part_that_runs(tiny_llama: CausalLM) -> None:
    reached: list[int] = []
    engine = engine_in_parts(tiny_llama, reached, reuse_prefix=True)
    expected = list(make_engine(tiny_llama, "none").generate(PROMPT, PARAMS))
    generation = engine.generate(PROMPT, PARAMS)
    forward, calls = engine.runner.model.forward, 0  # type: ignore[attr-defined]

    def cancel_in_the_second(*args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2:
            generation.close()
        return forward(*args, **options)

    object.__setattr__(engine.runner.model, "forward", cancel_in_the_second)  # type: ignore[attr-defined]
    assert list(generation) == [] and generation.tree is None
    assert calls == 2 and reached == [16]
    # What was computed is right, and the next request goes on from there.
    again = engine.generate(PROMPT, PARAMS)
    assert [step.token_ids for step in again] == [step.token_ids for step in expected]
    assert reached == [16, len(PROMPT) - 1] and again.stats.reused_tokens == 16
