"""Steps replayed from graphs, one for every shape that a step may have."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import torch

from ptd_engine import _core
from ptd_engine.errors import ConfigError, UnavailableError
from ptd_engine.kernels import SelectMode
from ptd_engine.model import CausalLM
from ptd_engine.runner.base import ModelRunner
from ptd_engine.runner.buckets import bucket_of, default_kv_buckets, default_node_buckets
from ptd_engine.runner.step import StepShape

_log = logging.getLogger(__name__)


class GraphBackend(Protocol):
    """What captures and replays: `CudaGraphs`, or a recording twin of them in tests."""

    def run(self, step: Callable[[], None]) -> None:
        """Run a step where a capture of it would be made, so that its kernels are loaded."""
        ...

    def capture(self, step: Callable[[], None]) -> Callable[[], None]:
        """Record a step without running it; the result runs what was recorded, on the same memory.

        Raises:
            RuntimeError: it cannot be captured, or there is no memory for it.
        """
        ...


class GraphRunner(ModelRunner):
    """Replays a step as one graph: plan to the device, commit, forward, select, output to the host.

    Key of a graph is the `StepShape`: node bucket, kv bucket, and how tokens are chosen; the number
    of successors is the runner's own. All else is contents of `StepMemory`. The first step of a
    shape runs op by op, which loads its kernels, and is captured for the next ones. What a request
    does to its logits lives in tensors of that request: such a step is a graph up to the hidden
    states, and tokens are chosen op by op behind it.

    A capture that fails leaves the runner without further ones: from there on steps that have no
    graph run op by op, in the same shapes, so with the same bits.

    Attributes:
        kv_buckets: bounds of the prefix.
        failure: why there are no more captures; "" while there are.
    """

    def __init__(
        self,
        model: CausalLM,
        graphs: GraphBackend,
        *,
        max_seq_len: int,
        max_nodes: int,
        node_buckets: Sequence[int] | None = None,
        kv_buckets: Sequence[int] | None = None,
        required: bool = False,
        **sizes: Any,
    ) -> None:
        """Allocate; nothing is captured yet, unless it is required.

        Args:
            model, max_seq_len, max_nodes, sizes: see `ModelRunner`.
            graphs: captures and replays.
            node_buckets: None: the defaults of `buckets`; empty: a graph for every number of rows.
            kv_buckets: rising up to max_seq_len; None: the defaults of `buckets`.
            required: a step without a graph is an error. The largest one is captured here.

        Raises:
            ConfigError: as for `ModelRunner`, or kv buckets that are none.
            UnavailableError: graphs are required and cannot be had.
        """
        super().__init__(
            model,
            max_seq_len=max_seq_len,
            max_nodes=max_nodes,
            node_buckets=default_node_buckets(max_nodes) if node_buckets is None else node_buckets,
            apart=True,
            **sizes,
        )
        buckets = default_kv_buckets(max_seq_len) if kv_buckets is None else tuple(kv_buckets)
        if not buckets or buckets[-1] != max_seq_len or list(buckets) != sorted({*buckets}):
            raise ConfigError.for_field(
                "kv_buckets", buckets, f"rising numbers that end with max_seq_len, {max_seq_len}"
            )
        self.kv_buckets: Sequence[int] = buckets
        self.failure = ""
        self._backend = graphs
        self._required = required
        self._graphs: dict[StepShape, Callable[[], None]] = {}
        if required:
            self._prepare(self._shape(self.max_nodes, buckets[-1], "greedy"))

    @property
    def shapes(self) -> Sequence[StepShape]:
        """Those that have a graph, in the order of their capture."""
        return tuple(self._graphs)

    def _shape(self, rows: int, kv_bucket: int, mode: SelectMode | None) -> StepShape:
        return StepShape.padded(rows, kv_bucket, mode, self.max_path)

    def _run(self, n_bucket: int) -> None:
        header = self.buffers.header()
        processing = self._processing(n_bucket)
        mode = self._mode(header)
        kv_bucket = bucket_of(self.kv_buckets, header.prefix_len)
        shape = self._shape(n_bucket, kv_bucket, mode if processing is None else None)
        replay = self._graphs.get(shape)
        if replay is not None:
            replay()
            self.counts.graph_steps += 1
        elif self.failure:
            self.step.run(shape)
            self.counts.graph_fallbacks += 1
        else:
            # Not run for warming up and then again: moving the last path twice would spoil it.
            self._backend.run(lambda: self.step.run(shape))
            if self._capture(shape):
                self.counts.graph_captures += 1
            else:
                self.counts.graph_fallbacks += 1
        if processing is not None:
            self.step.choose(replace(shape, n_verify=header.n_verify), mode, processing)

    def _capture(self, shape: StepShape) -> bool:
        """Capture a shape that has run; false if that is not to be had."""
        try:
            self._graphs[shape] = self._backend.capture(lambda: self.step.run(shape))
        except RuntimeError as error:
            what = f"a step of {shape.rows} rows over {shape.kv_bound} cache rows"
            reason = str(error).split("\n", 1)[0] or type(error).__name__
            if self._required:
                raise UnavailableError(
                    f"graphs='require', but {what} could not be captured: {reason} Lower "
                    "max_seq_len or the drafter's rows if memory is short, or use graphs='auto', "
                    "which runs such steps op by op."
                ) from error
            self.failure = reason
            _log.warning(
                "No more graphs for this engine (it has %d): %s could not be captured: %s Steps "
                "without a graph run op by op, slower and with the same output; stats count them "
                "as graph_fallbacks. Lower max_seq_len or the drafter's rows if memory is short; "
                "graphs='off' does without graphs, graphs='require' makes this an error.",
                len(self._graphs),
                what,
                reason,
            )
            return False
        return True

    @torch.inference_mode()
    def warmup(self, modes: Sequence[SelectMode] = ("greedy",)) -> int:
        """See `Runner`. The largest graph comes first: all share one pool of memory, which then
        has room for the others.
        """
        before = len(self._graphs)
        for rows in sorted(self.node_buckets, reverse=True):
            for kv_bucket in reversed(self.kv_buckets):
                for mode in modes:
                    self._prepare(self._shape(rows, kv_bucket, mode))
        return len(self._graphs) - before

    @torch.inference_mode()
    def _prepare(self, shape: StepShape) -> None:
        """Capture a shape by a step that means nothing: a root at position 0, and padding."""
        if shape in self._graphs or self.failure:
            return
        tree = _core.TreeBuilder(0, max_nodes=1)
        plan = tree.pack(0, n_bucket=shape.rows, max_path=self.max_path)
        self.staging[: len(plan)] = np.frombuffer(plan, dtype=np.uint8)
        self._backend.run(lambda: self.step.run(shape))
        self._capture(shape)
        self.buffers.mark()
        self.buffers.wait()
