"""What the contestants of `compare` wrote to a prompt, and where an output leaves ours."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bench.contestants import Timed
from bench.quality import teacher_forced
from ptd_engine.model import CausalLM

PLAIN = "plain"  # our plain decoding: what every output is compared with
# Quantisations part within the first few ranks; a wrong model picks one of tens of thousands.
_PLAUSIBLE_RANK = 10


@dataclass(frozen=True)
class Prompt:
    """One prompt, what each contestant may write to it, and what each wrote: one run a repeat."""

    prompt_set: str
    prompt_id: str
    token_ids: list[int]
    max_new_tokens: int
    runs: dict[str, list[Timed]]

    @property
    def expected(self) -> list[int]:
        """The output of our plain decoding."""
        return self.runs[PLAIN][0].token_ids

    def median(self, name: str) -> Timed:
        """The run of median time, whole, so that its parts add up."""
        middle = statistics.median_low(run.total_s for run in self.runs[name])
        return next(run for run in self.runs[name] if run.total_s == middle)

    def leading(self, name: str) -> int:
        """Tokens before the first that differs from ours, in the run that differs earliest."""
        return min(_common_prefix(self.expected, run.token_ids) for run in self.runs[name])

    def equal(self, name: str) -> bool:
        """Whether every run's output is ours."""
        return all(run.token_ids == self.expected for run in self.runs[name])


@dataclass(frozen=True)
class Difference:
    """Where an output leaves our plain decoding's, and how near it was there.

    Attributes:
        position: of the first differing token in the output.
        ours, theirs: the tokens there; None where that output had ended.
        logit_gap: our logit of our token minus that of theirs (tiny: a near-tie that rounding
            decides); None where an output had ended.
        rank: place of their token among our logits (2: our second choice); None likewise.
    """

    engine: str
    prompt_set: str
    prompt_id: str
    position: int
    ours: int | None
    theirs: int | None
    logit_gap: float | None
    rank: int | None

    @property
    def is_plausible(self) -> bool:
        """Their token was one of our most likely: rounding or quantisation may explain it."""
        return self.rank is not None and self.rank <= _PLAUSIBLE_RANK

    def __str__(self) -> str:
        near = "" if self.rank is None else f" (our choice {self.rank}, {self.logit_gap:.3g} below)"
        return (
            f"{self.engine} differs from our plain decoding: {self.prompt_set} {self.prompt_id}, "
            f"output token {self.position}: ours {self.ours}, its {self.theirs}{near}"
        )


def find_differences(name: str, prompts: Sequence[Prompt], model: CausalLM) -> Iterator[Difference]:
    """The first difference of each prompt on which an output of `name` is not ours."""
    for prompt in prompts:
        if prompt.equal(name):
            continue
        at, expected = prompt.leading(name), prompt.expected
        output = next(
            run.token_ids
            for run in prompt.runs[name]
            if run.token_ids != expected and _common_prefix(expected, run.token_ids) == at
        )
        ours = expected[at] if at < len(expected) else None
        theirs = output[at] if at < len(output) else None
        gap = rank = None
        if ours is not None and theirs is not None:
            *_, (logits, _) = teacher_forced(model, [*prompt.token_ids, *expected[:at], ours])
            last = logits[-1]
            gap = float(last[ours] - last[theirs])
            rank = 1 + int((last > last[theirs]).sum())
        yield Difference(
            name, prompt.prompt_set, prompt.prompt_id, at, ours, theirs, logit_gap=gap, rank=rank
        )


def _common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    pairs = zip(a, b, strict=False)
    return next((i for i, (x, y) in enumerate(pairs) if x != y), min(len(a), len(b)))
