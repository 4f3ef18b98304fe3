"""Paired generations: every engine on every prompt in turns, and where an output differs."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.common import collector_off, top2_gap
from ptd_engine.config import SamplingParams
from ptd_engine.llm import LLM
from ptd_engine.metrics import GenerationStats

PLAIN = "none"


@dataclass(frozen=True)
class Run:
    """One generation: its output, how it went, and how many tokens each step gave."""

    token_ids: list[int]
    stats: GenerationStats
    step_tokens: tuple[int, ...]


@dataclass(frozen=True)
class PromptRuns:
    """All runs of one prompt: by drafter label, one a repeat."""

    prompt_set: str
    prompt_id: str
    prompt_ids: list[int]
    runs: dict[str, list[Run]]

    def median(self, label: str) -> GenerationStats:
        """The run of median time, whole, so that its parts add up."""
        stats = [run.stats for run in self.runs[label]]
        middle = statistics.median_low(s.total_time_s for s in stats)
        return next(s for s in stats if s.total_time_s == middle)


@dataclass(frozen=True)
class Mismatch:
    """Where an output left plain decoding's.

    Attributes:
        position: of the first differing token in the output.
        expected, got: the tokens there; None where that output had ended.
        top2_gap: difference of plain decoding's two largest logits there (tiny: a near-tie that
            rounding decided); None where it cannot be told.
    """

    prompt_set: str
    prompt_id: str
    drafter: str
    position: int
    expected: int | None
    got: int | None
    top2_gap: float | None

    def __str__(self) -> str:
        gap = "" if self.top2_gap is None else f"; plain decoding's top-2 gap: {self.top2_gap:g}"
        return (
            f"DIFFERS from plain decoding: drafter {self.drafter}, {self.prompt_set} "
            f"{self.prompt_id}, output token {self.position}: expected {self.expected}, "
            f"got {self.got}{gap}"
        )


def measure(
    engines: Mapping[str, LLM],
    prompts: Sequence[PromptRuns],
    params: SamplingParams,
    repeats: int,
) -> None:
    """Run every engine on every prompt `repeats` times, in turns, into `prompts[...].runs`."""
    warm_up(engines, prompts[0].prompt_ids, params)
    turn = 0
    for _ in range(repeats):
        for prompt in prompts:
            run_in_turn(engines, prompt, params, turn)
            turn += 1


def warm_up(engines: Mapping[str, LLM], prompt_ids: list[int], params: SamplingParams) -> None:
    """Run every engine once: libraries prepare a kernel for each new shape."""
    for llm in engines.values():
        generate(llm, prompt_ids, params)


def run_in_turn(
    engines: Mapping[str, LLM], prompt: PromptRuns, params: SamplingParams, turn: int
) -> None:
    """Run every engine once on a prompt, beginning with another one in each turn."""
    labels = list(engines)
    first = turn % len(labels)
    for label in labels[first:] + labels[:first]:
        result = generate(engines[label], prompt.prompt_ids, params)
        prompt.runs.setdefault(label, []).append(result)


def generate(llm: LLM, prompt_ids: list[int], params: SamplingParams) -> Run:
    """Token ids in, token ids out: prefill and all steps, without the text's decoding."""
    with collector_off():
        generation = llm.engine.generate(prompt_ids, params)
        step_tokens = tuple(len(step.token_ids) for step in generation)
    return Run(generation.token_ids, generation.stats, step_tokens)


def find_mismatches(prompts: Sequence[PromptRuns], plain: LLM) -> list[Mismatch]:
    """The first output of each prompt and drafter (plain decoding included, if it does not repeat
    itself) that differs from plain decoding's first one.
    """
    found = []
    for prompt in prompts:
        expected = prompt.runs[PLAIN][0].token_ids
        for label, runs in prompt.runs.items():
            wrong = next((r.token_ids for r in runs if r.token_ids != expected), None)
            if wrong is None:
                continue
            pairs = zip(expected, wrong, strict=False)
            shorter = min(len(expected), len(wrong))
            at = next((i for i, (a, b) in enumerate(pairs) if a != b), shorter)
            both = at < shorter
            found.append(
                Mismatch(
                    prompt.prompt_set,
                    prompt.prompt_id,
                    label,
                    at,
                    expected[at] if at < len(expected) else None,
                    wrong[at] if at < len(wrong) else None,
                    _gap_after(plain, prompt.prompt_ids + expected[:at]) if both else None,
                )
            )
    return found


def _gap_after(plain: LLM, context: list[int]) -> float | None:
    generate(plain, context, SamplingParams(max_new_tokens=1))
    return top2_gap(plain.engine.runner)
