"""Memory of the CPU kernels' weights: large blocks that hold one matrix behind the other.

A step reads all weights once, in order. In blocks of large pages the processor's prefetch runs on
from one matrix to the next; matrices of a megabyte each on pages of their own would break it up.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ptd_engine import _core
from ptd_engine.errors import CheckpointError
from ptd_engine.kernels.ops import LinearWeight

_ALIGNMENT = 64  # bytes, which the kernels want of a matrix
_PAGE = 2 << 20  # a large page
_BLOCK = 32 << 20  # what a block has at least; what stays unused of the last is never touched


class WeightStore:
    """Packs matrices, one model's into common blocks; a block lives as long as one of them."""

    def __init__(self) -> None:
        self._free = torch.empty(0, dtype=torch.uint8)  # the rest of the newest block

    def pack(self, weight: Tensor, bias: Tensor | None, layout: str) -> LinearWeight:
        """Pack weight [out, in], float32 or bfloat16, and bias [out].

        Args:
            layout: "float32", "bfloat16", "int8" or "int4".

        Raises:
            CheckpointError: a matrix to be quantised holds NaN or infinity.
        """
        out_features, in_features = weight.shape
        shape = (layout, out_features, in_features, bias is not None)
        nbytes = _core.CpuWeight.nbytes(*shape)
        memory = self._take(nbytes)
        handle = _core.CpuWeight(*shape, memory.data_ptr())
        weight = weight.contiguous()
        bias_at = 0
        if bias is not None:
            bias = bias.to(weight.dtype).contiguous()
            bias_at = bias.data_ptr()
        try:
            handle.pack(weight.dtype == torch.bfloat16, weight.data_ptr(), bias_at)
        except ValueError as error:
            raise CheckpointError(str(error)) from error
        return LinearWeight(memory, None, layout, out_features, in_features, nbytes, handle)

    def _take(self, nbytes: int) -> Tensor:
        rounded = -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        if rounded > self._free.numel():
            size = -(-max(rounded, _BLOCK) // _PAGE) * _PAGE
            block = torch.empty(size + _PAGE, dtype=torch.uint8)
            skip = -block.data_ptr() % _PAGE
            self._free = block[skip : skip + size]
            _core.cpu_large_pages(self._free.data_ptr(), size)
        memory, self._free = self._free[:nbytes], self._free[rounded:]
        return memory
