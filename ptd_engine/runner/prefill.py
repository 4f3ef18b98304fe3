"""The prompt's keys and values, computed in chunks: a chain in place of a tree, never captured.

The attention is the backend's own causal operation over the same cache. torch's SDPA and flash-attn
are not put in its place where it promises row-invariance: their tiles follow the chunk, so a key
would depend on how the prompt was cut, and a request that finds part of its prompt in the cache
would decode other bits than a fresh one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ptd_engine.runner.memory import StepMemory
from ptd_engine.runner.protocol import PromptObserver

PREFILL_CHUNK = 512  # rows: bounds the activations; larger chunks gain nothing on a CPU


class Prefill:
    """Runs prompts into the cache of a `StepMemory`."""

    def __init__(self, memory: StepMemory, chunk: int, vocab_limit: int) -> None:
        """Allocate what it needs beside the memory.

        Args:
            chunk: rows at once; the activations have room for them.
            vocab_limit: ids from here on stand for no token.
        """
        self._memory = memory
        self.chunk = chunk
        self._vocab_limit = vocab_limit
        device = memory.model.device
        self._start = torch.zeros(1, dtype=torch.int32, device=device)
        # Temperatures and the like of rows that take the argmax.
        self._zeros = torch.zeros(max(memory.buffers.max_nodes, 4), device=device)

    @torch.inference_mode()
    def run(
        self,
        token_ids: Sequence[int],
        *,
        prompt_len: int,
        start: int,
        observe: PromptObserver | None,
        go_on: Callable[[], bool] | None,
    ) -> int:
        """See `Runner.prefill`."""
        memory, model = self._memory, self._memory.model
        model.rope.prepare(prompt_len)
        ids = torch.tensor(list(token_ids), dtype=torch.int32, device=model.device)
        positions = torch.arange(
            start, start + len(token_ids), dtype=torch.int32, device=model.device
        )
        for begin in range(0, len(token_ids), self.chunk):
            if go_on is not None and not go_on():
                return start + begin
            end = min(begin + self.chunk, len(token_ids))
            self._start.fill_(start + begin)
            model.forward(
                ids[begin:end],
                positions[begin:end],
                None,
                self._start,
                start + end,
                memory.cache,
                memory.activations,
                exact_bound=True,
            )
            if observe is not None:
                self._show(start + begin, end - begin, observe)
        return start + len(token_ids)

    def _show(self, position: int, rows: int, observe: PromptObserver) -> None:
        """Outputs of the first rows of `activations.normed`, as many at once as a step has."""
        memory, most = self._memory, self._memory.buffers.max_nodes
        for first in range(0, rows, most):
            n = min(most, rows - first)
            memory.model.ops.head_select(
                memory.activations.normed[first : first + n],
                memory.model.weights.lm_head,
                memory.logits[:n],
                self._zeros[:n],
                self._zeros[:n],
                self._zeros,
                n_verify=0,
                mode="greedy",
                out=memory.buffers.output[:n],
                vocab_limit=self._vocab_limit,
            )
            memory.buffers.download(n)
            memory.buffers.mark()
            memory.buffers.wait()
            observe(position + first, memory.buffers.host_output[:n])
