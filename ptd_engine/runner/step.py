"""The device's part of a step: one function, whoever runs it and however."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ptd_engine.kernels import Processing, SelectMode
from ptd_engine.runner.buffers import FILTERS, MOVES_ROWS, SAMPLES, PlanHeader
from ptd_engine.runner.memory import StepMemory


@dataclass(frozen=True)
class StepShape:
    """All that a step depends on beside the contents of its memory.

    Attributes:
        rows: node bucket N.
        kv_bound: no cache row from here on is read; prefix_len + N at least.
        mode: how tokens are chosen; None: they are not, the step ends with the hidden states.
        n_verify: rows from here on take the argmax.
        n_commit: entries of `commit_src` that are carried out; 0: the cache is as it should be.
        exact_bound: kv_bound is prefix_len + N.
    """

    rows: int
    kv_bound: int
    mode: SelectMode | None
    n_verify: int
    n_commit: int
    exact_bound: bool

    @classmethod
    def of(cls, header: PlanHeader, rows: int, mode: SelectMode | None) -> StepShape:
        """What one plan needs, and nothing else."""
        return cls(
            rows=rows,
            kv_bound=header.prefix_len + rows,
            mode=mode,
            n_verify=header.n_verify,
            n_commit=header.n_commit if header.flags & MOVES_ROWS else 0,
            exact_bound=True,
        )

    @classmethod
    def padded(cls, rows: int, kv_bucket: int, mode: SelectMode | None, max_path: int) -> StepShape:
        """What serves every plan of this many rows whose prefix is at most `kv_bucket` long.

        Of a plan's commit entries those not in use move nothing, and its draft and padding rows
        have the temperature 0: so all entries and all rows are given to the kernels.
        """
        return cls(
            rows=rows,
            kv_bound=kv_bucket + rows,
            mode=mode,
            n_verify=rows,
            n_commit=max_path,
            exact_bound=False,
        )


def select_mode(header: PlanHeader) -> SelectMode:
    """How a plan wants its tokens chosen."""
    if header.flags & FILTERS:
        return "filter"
    return "sample" if header.flags & SAMPLES else "greedy"


class Step:
    """Reads and writes a `StepMemory` and nothing else, and never waits."""

    def __init__(self, memory: StepMemory, vocab_limit: int) -> None:
        """Take the memory.

        Args:
            vocab_limit: ids from here on stand for no token.
        """
        self.memory = memory
        self.vocab_limit = vocab_limit

    def run(
        self,
        shape: StepShape,
        processing: Processing | None = None,
        forward: Callable[[StepShape], None] | None = None,
    ) -> None:
        """Take the staged plan to the device, commit the last path, run the rows, choose.

        Args:
            processing: what the request does to logits.
            forward: stands in for `Step.forward`.
        """
        self.memory.buffers.upload(shape.rows)
        self.commit(shape)
        (forward or self.forward)(shape)
        if shape.mode is not None:
            self.choose(shape, shape.mode, processing)

    def commit(self, shape: StepShape) -> None:
        """Move the rows of the last accepted path to the end of the prefix."""
        if shape.n_commit == 0:
            return
        plan, cache = self.memory.buffers.view(shape.rows), self.memory.cache
        self.memory.model.ops.kv_commit(
            cache.k, cache.v, plan.commit_src[: shape.n_commit], plan.prefix_len, plan.n_commit
        )

    def forward(self, shape: StepShape) -> None:
        """Run the plan's rows through the model; the result is in `activations.normed`."""
        plan = self.memory.buffers.view(shape.rows)
        self.memory.model.forward(
            plan.token_ids,
            plan.positions,
            plan.mask,
            plan.prefix_len,
            shape.kv_bound,
            self.memory.cache,
            self.memory.activations,
            exact_bound=shape.exact_bound,
            workspace=self.memory.workspace,
        )

    def choose(
        self, shape: StepShape, mode: SelectMode, processing: Processing | None = None
    ) -> None:
        """Choose the rows' tokens, and take them to the host."""
        memory, n = self.memory, shape.rows
        plan = memory.buffers.view(n)
        memory.model.ops.head_select(
            memory.activations.normed[:n],
            memory.model.weights.lm_head,
            memory.logits[:n],
            plan.temperature,
            plan.uniform,
            plan.sampling,
            n_verify=shape.n_verify,
            mode=mode,
            out=memory.buffers.output[:n],
            vocab_limit=self.vocab_limit,
            processing=processing,
        )
        memory.buffers.download(n)
