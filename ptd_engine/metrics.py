"""The paper's and the field's speculation metrics, defined once.

Counters come from `_core.Session.stats` (prefill is not a step). With them
    decoding_efficiency == hit_rate * accept_length + (1 - hit_rate)
holds exactly on the counters, because a step without candidates emits one token.
Sources: the PTD paper, section 4.1 (DE, HR, AL, Dft, Ver); vLLM's speculative decoding statistics
(draft_acceptance_rate, mean_acceptance_length, acceptance by position). The paper's split of a step
into retrieval, forward and update is plan_time_s (retrieval from the pool, the making of the step),
forward_time_s and commit_time_s (verification, the update of tree and pool).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any


def _ratio(numerator: float, denominator: float) -> float:
    """0 where nothing was counted, so that a report never holds NaN."""
    return numerator / denominator if denominator else 0.0


@dataclass(frozen=True, slots=True)
class GenerationStats:
    """One generation (or several, see `merge`).

    Attributes:
        steps: forward passes after prefill.
        tokens: tokens generated.
        decoding_efficiency: tokens / steps (the paper's DE).
        hit_rate: share of steps whose candidate tree was not empty (HR).
        accept_length: mean tokens output on those steps, bonus token included (AL).
        mean_draft_nodes, mean_candidate_nodes: rows a step (Dft, Ver).
        accepted_step_rate: share of steps with at least one accepted candidate (stricter than HR).
        acceptance_histogram: [k] = steps that accepted k candidates, trailing zeros cut.
        acceptance_by_depth: [k - 1] = share of steps that accepted at least k candidates; their
            sum is mean_acceptance_length - 1.
        conditional_acceptance: [k - 1] = the same of the steps that accepted at least k - 1.
        mean_acceptance_length: 1 + accepted / steps.
        draft_acceptance_rate: accepted / candidate rows.
        time_to_first_token_s: from the call to the first token, prefill included.
        decode_time_s: all steps, prefill excluded.
        total_time_s: end to end.
        tokens_per_second: tokens / total_time_s (the paper's TP).
        plan_time_s, forward_time_s, commit_time_s: where the steps' time went.
        reused_tokens: of the prompt, not computed since the last request's are the same.
        host_syncs: times that steps waited for the device; equal to `steps` but for requests with
            logprobs, a logits_processor or recursive verification.
        graph_steps: steps replayed from a captured graph.
        graph_captures: steps that ran op by op and were captured for later ones.
        graph_fallbacks: steps that ran op by op because they could not be captured.
    """

    steps: int
    tokens: int
    hit_steps: int
    hit_tokens: int
    candidate_nodes: int
    draft_nodes: int
    accepted: int
    acceptance_histogram: tuple[int, ...]
    time_to_first_token_s: float = 0.0
    total_time_s: float = 0.0
    plan_time_s: float = 0.0
    forward_time_s: float = 0.0
    commit_time_s: float = 0.0
    reused_tokens: int = 0
    host_syncs: int = 0
    graph_steps: int = 0
    graph_captures: int = 0
    graph_fallbacks: int = 0

    @classmethod
    def from_counters(
        cls,
        counters: Mapping[str, Any],
        *,
        execution: Mapping[str, int] | None = None,
        reused_tokens: int = 0,
        **times: float,
    ) -> GenerationStats:
        """Build from a session's counters and the engine's times in seconds.

        Args:
            execution: the runner's counts for it: host_syncs and the graphs'.
        """
        measured: dict[str, Any] = {**(execution or {}), **times}
        return cls(
            steps=counters["steps"],
            tokens=counters["tokens"],
            hit_steps=counters["hit_steps"],
            hit_tokens=counters["hit_tokens"],
            candidate_nodes=counters["candidate_nodes"],
            draft_nodes=counters["draft_nodes"],
            accepted=counters["accepted"],
            acceptance_histogram=_trim(counters["accepted_histogram"]),
            reused_tokens=reused_tokens,
            **measured,
        )

    @classmethod
    def merge(cls, parts: Sequence[GenerationStats]) -> GenerationStats:
        """Sum of several generations: counters and times add, so ratios are weighted by steps.

        time_to_first_token_s becomes the mean.
        """
        width = max((len(p.acceptance_histogram) for p in parts), default=0)
        histogram = [0] * width
        for part in parts:
            for k, n in enumerate(part.acceptance_histogram):
                histogram[k] += n
        summed: dict[str, Any] = {
            name: sum(getattr(p, name) for p in parts)
            for name in cls.__dataclass_fields__
            if name != "acceptance_histogram"
        }
        summed["time_to_first_token_s"] = _ratio(summed["time_to_first_token_s"], len(parts))
        return cls(acceptance_histogram=tuple(histogram), **summed)

    @property
    def decoding_efficiency(self) -> float:
        """Tokens a step (DE)."""
        return _ratio(self.tokens, self.steps)

    @property
    def hit_rate(self) -> float:
        """Share of steps with a candidate tree (HR)."""
        return _ratio(self.hit_steps, self.steps)

    @property
    def accept_length(self) -> float:
        """Mean tokens of those steps (AL)."""
        return _ratio(self.hit_tokens, self.hit_steps)

    @property
    def mean_draft_nodes(self) -> float:
        """Draft rows a step (Dft)."""
        return _ratio(self.draft_nodes, self.steps)

    @property
    def mean_candidate_nodes(self) -> float:
        """Candidate rows a step (Ver)."""
        return _ratio(self.candidate_nodes, self.steps)

    @property
    def accepted_step_rate(self) -> float:
        """Share of steps with an accepted candidate."""
        return _ratio(sum(self.acceptance_histogram[1:]), self.steps)

    @property
    def acceptance_by_depth(self) -> tuple[float, ...]:
        """Share of steps that accepted at least 1, 2, ... candidates."""
        return tuple(_ratio(n, self.steps) for n in self._steps_by_depth()[1:])

    @property
    def conditional_acceptance(self) -> tuple[float, ...]:
        """Share of the steps that accepted at least 0, 1, ... candidates that accepted one more."""
        return tuple(_ratio(n, before) for before, n in pairwise(self._steps_by_depth()))

    @property
    def mean_acceptance_length(self) -> float:
        """1 + accepted / steps (vLLM's definition)."""
        return 1.0 + _ratio(self.accepted, self.steps)

    @property
    def draft_acceptance_rate(self) -> float:
        """Accepted / candidate rows."""
        return _ratio(self.accepted, self.candidate_nodes)

    @property
    def decode_time_s(self) -> float:
        """Seconds of all steps, prefill excluded."""
        return self.plan_time_s + self.forward_time_s + self.commit_time_s

    @property
    def tokens_per_second(self) -> float:
        """End to end (TP)."""
        return _ratio(self.tokens, self.total_time_s)

    def step_cost(self, plain: GenerationStats) -> float:
        """Time of a step over that of a step of `plain`, plain decoding of the same prompts.

        Prefill is in neither. With it, speed-up is about decoding_efficiency / step_cost.
        """
        own = _ratio(self.decode_time_s, self.steps)
        return _ratio(own, _ratio(plain.decode_time_s, plain.steps))

    def speedup(self, plain: GenerationStats) -> float:
        """Time of `plain`, plain decoding of the same prompts, over this time, end to end."""
        return _ratio(plain.total_time_s, self.total_time_s)

    def _steps_by_depth(self) -> list[int]:
        """[k] = steps that accepted at least k candidates; [0] = all steps."""
        counted = self.acceptance_histogram
        return [sum(counted[k:]) for k in range(len(counted))]

    def as_dict(self) -> dict[str, Any]:
        """Counters and every derived metric, ready for JSON (no NaN, no infinity)."""
        derived = {
            name: getattr(self, name)
            for name, value in type(self).__dict__.items()
            if isinstance(value, property)
        }
        return {**asdict(self), **derived}


def _trim(histogram: Sequence[int]) -> tuple[int, ...]:
    end = len(histogram)
    while end > 1 and histogram[end - 1] == 0:
        end -= 1
    return tuple(histogram[:end])
