"""Static memory of a step: the packed plan, its device copy, and the step's output.

The session writes the plan into `staging` (pinned where there is a GPU); one copy takes it to the
device, another brings the output back. On a CPU both sides are the same memory and nothing is
copied, unless they are to be apart. The block's layout is defined in csrc/include/ptd/step_plan.h.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ptd_engine import _core

MOVES_ROWS = 1  # flags of the plan header
SAMPLES = 2
FILTERS = 4

_TYPES = {
    "header": torch.int32,
    "sampling": torch.float32,
    "token_ids": torch.int32,
    "positions": torch.int32,
    "commit_src": torch.int32,
    "temperature": torch.float32,
    "uniform": torch.float32,
    "mask": torch.int64,
}


@dataclass(frozen=True)
class PlanView:
    """Device views into the block of one node bucket N; W = ceil(N / 64), P = max_path.

    Attributes:
        prefix_len, n_commit: int32 [1].
        sampling: float32 [4]: top_k, top_p, min_p, and top_p of the listed successors (0: off).
        token_ids, positions: int32 [N].
        commit_src: int32 [P].
        temperature, uniform: float32 [N].
        mask: int64 [N, W], the bits of uint64.
    """

    prefix_len: Tensor
    n_commit: Tensor
    sampling: Tensor
    token_ids: Tensor
    positions: Tensor
    commit_src: Tensor
    temperature: Tensor
    uniform: Tensor
    mask: Tensor


@dataclass(frozen=True)
class PlanHeader:
    """What the host reads of the plan it has just written."""

    n_nodes: int
    n_verify: int
    prefix_len: int
    n_commit: int
    flags: int


class StepBuffers:
    """Plan and output memory for steps of up to `max_nodes` rows."""

    def __init__(
        self,
        max_nodes: int,
        max_path: int,
        top_k: int,
        device: torch.device,
        *,
        apart: bool = False,
    ) -> None:
        """Allocate once.

        Args:
            max_nodes: rows of the largest node bucket.
            max_path: the session's longest accepted path (P).
            top_k: successor ids a row in the output (K).
            apart: host and device have memory of their own also where they could share it.
        """
        self.max_nodes = max_nodes
        self.max_path = max_path
        self.top_k = top_k
        self.device = device
        on_gpu = device.type == "cuda"
        self._apart = apart or on_gpu
        nbytes = int(_core.plan_layout(max_nodes, max_path)["total"])
        self._staging = torch.zeros(nbytes, dtype=torch.uint8, pin_memory=on_gpu)
        self._block = self._staging
        shape = (max_nodes, 1 + top_k)
        self._host_output = torch.zeros(shape, dtype=torch.int32, pin_memory=on_gpu)
        self.output: Tensor = self._host_output
        if self._apart:
            self._block = torch.zeros(nbytes, dtype=torch.uint8, device=device)
            self.output = torch.zeros(shape, dtype=torch.int32, device=device)
        self.staging: npt.NDArray[np.uint8] = self._staging.numpy()
        self.host_output: npt.NDArray[np.int32] = self._host_output.numpy()
        self._header: npt.NDArray[np.int32] = self.staging[:32].view(np.int32)
        self._views: dict[int, PlanView] = {}
        self._done = torch.cuda.Event() if on_gpu else None

    @property
    def rewritten(self) -> list[Tensor]:
        """What a step writes before it, or the host, reads it: the device's plan, the outputs."""
        block = [self._block] if self._apart else []
        return [*block, self.output, self._host_output]

    def header(self) -> PlanHeader:
        """The header of the plan in `staging`."""
        return PlanHeader(*(int(value) for value in self._header[:5]))

    def upload(self, n_bucket: int) -> None:
        """Enqueue the host-to-device copy of the plan (nothing where they are one)."""
        if self._apart:
            nbytes = int(_core.plan_layout(n_bucket, self.max_path)["total"])
            self._block[:nbytes].copy_(self._staging[:nbytes], non_blocking=True)

    def download(self, n_bucket: int) -> None:
        """Enqueue the device-to-host copy of the output (nothing where they are one)."""
        if self._apart:
            self._host_output[:n_bucket].copy_(self.output[:n_bucket], non_blocking=True)

    def mark(self) -> None:
        """Remember what is enqueued by now as what `wait` waits for."""
        if self._done is not None:
            self._done.record(torch.cuda.current_stream(self.device))

    def wait(self) -> None:
        """Wait for the device, up to the last mark."""
        if self._done is not None:
            self._done.synchronize()

    def view(self, n_bucket: int) -> PlanView:
        """Typed device views of the block for this bucket, made once a bucket."""
        found = self._views.get(n_bucket)
        if found is None:
            found = self._views[n_bucket] = self._make_view(n_bucket)
        return found

    def _make_view(self, n_bucket: int) -> PlanView:
        layout = _core.plan_layout(n_bucket, self.max_path)

        def field(name: str) -> Tensor:
            offset, size = layout[name]
            return self._block[offset : offset + size].view(_TYPES[name])

        header = field("header")
        return PlanView(
            prefix_len=header[2:3],
            n_commit=header[3:4],
            sampling=field("sampling"),
            token_ids=field("token_ids"),
            positions=field("positions"),
            commit_src=field("commit_src"),
            temperature=field("temperature"),
            uniform=field("uniform"),
            mask=field("mask").view(n_bucket, -1),
        )
