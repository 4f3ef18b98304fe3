"""A toy with logits, a function of the tokens before them; real operations choose the tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ptd_engine.kernels import SelectMode, select_ops
from ptd_engine.runner import LogitRules, PlanView, RequestLogits, StepCounts
from ptd_engine.runner.buffers import FILTERS, SAMPLES
from ptd_engine.testing.toy import ToyRunner

NextLogits = Callable[[list[int]], Sequence[float] | npt.NDArray[np.float32]]
"""The logits after a context, one for each id of the output matrix, padding included."""


class TableRunner(ToyRunner):
    """A `ptd_engine.runner.Runner` over a `NextLogits`, as `EagerRunner` is over a model."""

    def __init__(
        self,
        next_logits: NextLogits,
        *,
        max_seq_len: int,
        vocab_size: int,
        padding: int = 0,
        kernels: str = "torch",
        **sizes: Any,
    ) -> None:
        """Allocate.

        Args:
            vocab_size: ids that stand for tokens.
            padding: ids behind them that have logits and nothing else.
            kernels: the backend of `select`.
            sizes: as for `ToyRunner`.
        """
        super().__init__(_no_token, max_seq_len=max_seq_len, vocab_size=vocab_size, **sizes)
        self.next_logits = next_logits
        self.ops = select_ops(kernels)
        self.width = vocab_size + padding
        self._request: RequestLogits | None = None
        self._view: PlanView
        self._mode: SelectMode = "greedy"

    def begin(self, rules: LogitRules | None) -> None:
        """See `Runner`."""
        self.counts = StepCounts()
        self._request = None
        if rules is not None:
            self._request = RequestLogits(
                rules,
                vocab_size=self.width,
                vocab_limit=self.vocab_size,
                max_nodes=self.max_nodes,
                device=torch.device("cpu"),
            )

    def launch(self, n_bucket: int) -> None:
        """See `Runner`."""
        self.place(n_bucket)
        self._view, plan = self._tensors(n_bucket), self.plan
        row_by_row = self._request is not None and self._request.row_by_row
        self._mode = "filter" if plan.flags & FILTERS else "greedy"
        if plan.flags & SAMPLES and not plan.flags & FILTERS:
            self._mode = "sample"
        processing = None
        if self._request is not None:
            self._request.advance()
        if self._request is not None and not row_by_row:
            processing = self._request.processing(self._view)
        out = torch.full((n_bucket, 1), 7777, dtype=torch.int32)
        self.ops.select(
            self._logits(range(n_bucket)),
            self._view.temperature,
            self._view.uniform,
            self._view.sampling,
            n_verify=plan.n_verify,
            mode="greedy" if row_by_row else self._mode,
            out=out,
            vocab_limit=self.vocab_size,
            processing=processing,
        )
        self._output = out.numpy()

    def probabilities(self) -> npt.NDArray[np.float64]:
        """See `Runner`."""
        n = self.plan.n_verify
        logits = self._logits(range(n))[:, : self.vocab_size]
        if self._request is not None:
            self.ops.process(logits, self._request.processing(self._view))
        law = self.ops.probabilities(logits, self._view.temperature[:n], self._view.sampling)
        return np.ascontiguousarray(law.numpy())

    def choose(self, row: int, processor: Callable[[Tensor], Tensor]) -> int:
        """See `Runner`."""
        assert self._request is not None
        logits = self._logits([row])
        return self._request.choose(row, logits, self._view, processor, self.ops, self._mode)

    def logprobs(
        self, rows: Sequence[int]
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        """See `Runner`."""
        assert self._request is not None
        return self._request.logprobs(rows)

    def extend(self, token_ids: Sequence[int]) -> None:
        """See `Runner`."""
        if self._request is not None:
            self._request.extend(token_ids)

    def _logits(self, rows: Sequence[int]) -> Tensor:
        """[len(rows), width]; zeros in padding rows."""
        logits = torch.zeros(len(rows), self.width)
        for to, row in enumerate(rows):
            if row < len(self.contexts):
                logits[to] = torch.as_tensor(self.next_logits(self.contexts[row]))
        return logits

    def _tensors(self, n_bucket: int) -> PlanView:
        plan, words = self.plan, (n_bucket + 63) // 64
        masks = [
            [mask >> 64 * word & (1 << 64) - 1 for word in range(words)] for mask in plan.masks
        ]
        return PlanView(
            prefix_len=torch.tensor([plan.prefix_len], dtype=torch.int32),
            n_commit=torch.tensor([plan.n_commit], dtype=torch.int32),
            sampling=torch.tensor(plan.sampling),
            token_ids=torch.tensor(plan.token_ids),
            positions=torch.tensor(plan.positions),
            commit_src=torch.tensor(plan.commit_src),
            temperature=torch.tensor(plan.temperature),
            uniform=torch.tensor(plan.uniform),
            mask=torch.from_numpy(np.array(masks, np.uint64).view(np.int64)),
        )


def _no_token(context: list[int]) -> int:
    raise AssertionError("tokens come from the logits")
