"""What the engine asks of an execution, and what an execution counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor

from ptd_engine.kernels import SelectMode
from ptd_engine.runner.request_logits import LogitRules

PromptObserver = Callable[[int, npt.NDArray[np.int32]], None]


@dataclass(slots=True)
class StepCounts:
    """What a runner did in its steps since `begin`; it goes on counting in the same object.

    Attributes:
        host_syncs: times the host waited for the device; once a step is the floor. A step's
            log-probabilities, a user's logits_processor and recursive verification wait besides.
            Prefill and captures are not counted.
        graph_steps: steps that were replayed from a graph.
        graph_captures: steps that ran op by op and were captured for the next ones.
        graph_fallbacks: steps that ran op by op because a graph could not be had.
    """

    host_syncs: int = 0
    graph_steps: int = 0
    graph_captures: int = 0
    graph_fallbacks: int = 0


class Runner(Protocol):
    """What the engine asks of an execution: fill the cache, run a packed plan, hand back tokens."""

    @property
    def max_path(self) -> int:
        """Longest accepted path of a step."""
        ...

    @property
    def max_nodes(self) -> int:
        """Rows of the largest step there is room for."""
        ...

    @property
    def top_k(self) -> int:
        """Successor ids a row in the output."""
        ...

    @property
    def node_buckets(self) -> Sequence[int]:
        """Row counts that a step is padded to; empty: exact."""
        ...

    @property
    def counts(self) -> StepCounts:
        """What its steps did since `begin`."""
        ...

    @property
    def staging(self) -> npt.NDArray[np.uint8]:
        """Where the session writes the next plan."""
        ...

    def begin(self, rules: LogitRules | None) -> None:
        """Take the rules of the next request, before its prefill; None: its logits stay as is."""
        ...

    def reusable(self, rows: int, *, prompt_len: int) -> int:
        """How many of the first `rows` cache rows a prompt of this length would get again, if its
        tokens there are those of the last sequence. Asked before `prefill`.
        """
        ...

    def prefill(
        self,
        token_ids: Sequence[int],
        *,
        prompt_len: int,
        start: int = 0,
        observe: PromptObserver | None = None,
        go_on: Callable[[], bool] | None = None,
    ) -> int:
        """Start a sequence: cache the keys and values of these tokens from position `start`.

        Args:
            prompt_len: length of the whole prompt (some rope types depend on it).
            start: rows of the last sequence that stay.
            observe: shown the greedy output of every row, in order, part by part: the position of
                the part's first row and [n, 1 + top_k] (valid during the call). Costs the output
                matrix over all rows.
            go_on: asked before every part; false ends the prefill there.

        Returns:
            the cache rows that hold the prompt, from 0 on: start + len(token_ids) at the end.
        """
        ...

    def launch(self, n_bucket: int) -> None:
        """Enqueue the staged plan's step: commit of the last path, forward, select."""
        ...

    def wait(self) -> npt.NDArray[np.int32]:
        """Output of the launched step, [n_bucket, 1 + top_k]; the only host sync of a step."""
        ...

    def probabilities(self) -> npt.NDArray[np.float64]:
        """Processed distributions of the last step's root and candidate rows, [n_verify, V]."""
        ...

    def choose(self, row: int, processor: Callable[[Tensor], Tensor]) -> int:
        """Next token of a verified row of the last step by way of a user's function of its logits;
        a host sync each. See `RequestLogits.choose`.
        """
        ...

    def logprobs(
        self, rows: Sequence[int]
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        """Ids and log-probabilities of rows of the last step, [len(rows), 1 + k] each: the chosen
        token, then the k likeliest. Only where the rules ask for them.
        """
        ...

    def extend(self, token_ids: Sequence[int]) -> None:
        """Take note of what a step has added to the output, before the next one."""
        ...

    def warmup(self, modes: Sequence[SelectMode] = ("greedy",)) -> int:
        """Capture every shape that a step choosing tokens in these modes may have, and return how
        many graphs that made; 0 where there are no graphs. Only between requests: rows of the
        cache are overwritten.
        """
        ...
