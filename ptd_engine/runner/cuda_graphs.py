"""CUDA graphs of steps: captured on a stream of their own, in one pool of memory."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import torch


class CudaGraphs:
    """A `GraphBackend` on a GPU.

    All graphs share a pool: what a step allocates for itself is dead when it ends, so the next
    graph may use the same memory. Nothing that outlives a step may be allocated in one.
    """

    def __init__(self, device: torch.device) -> None:
        """Make the stream and the pool.

        Args:
            device: a GPU.
        """
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()

    def run(self, step: Callable[[], None]) -> None:
        """See `GraphBackend`: in order with the current stream, on the one that captures."""
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            step()
        current.wait_stream(self._stream)

    def capture(self, step: Callable[[], None]) -> Callable[[], None]:
        """See `GraphBackend`. Waits for the device: memory that is free then can be used."""
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self._stream):
            # Other threads may use the device meanwhile.
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                step()
            except BaseException:
                with suppress(RuntimeError):  # that it is void; the cause is what matters
                    self._end(graph)
                raise
            self._end(graph)
        return graph.replay

    def _end(self, graph: torch.cuda.CUDAGraph) -> None:
        try:
            graph.capture_end()
        except RuntimeError:
            # Where the driver says that a capture is void, torch may leave its allocator filling
            # the pool (pytorch/pytorch#180395), and every later clean-up then fails. Where it does
            # not, ending it twice is refused, which does no harm.
            end = getattr(torch._C, "_cuda_endAllocateToPool", None)
            if end is not None:
                with suppress(RuntimeError):
                    end(self._stream.device_index, self._pool)
            raise
