"""Everything that prefill and steps read and write, allocated once and never moved."""

from __future__ import annotations

from dataclasses import fields, replace

import torch
from torch import Tensor

from ptd_engine.errors import ConfigError
from ptd_engine.kv_cache import KVCache
from ptd_engine.model import CausalLM, ForwardBuffers
from ptd_engine.runner.buffers import StepBuffers


class StepMemory:
    """A model with a rotary table for one sequence, and the static memory around it.

    Attributes:
        model: what steps run. Rope types that depend on the prompt rewrite their table, so every
            memory has its own.
        buffers: plan and output.
        cache: keys and values. Behind the last position lie the rows of a step's tree, and of a
            no-op commit entry.
        activations: of the largest step or prefill chunk.
        logits: [max_nodes, V].
        workspace: of the attention, fp32; None where the kernels want none.
    """

    def __init__(
        self,
        model: CausalLM,
        *,
        max_seq_len: int,
        max_nodes: int,
        max_path: int,
        top_k: int,
        prefill_chunk: int,
        apart: bool = False,
    ) -> None:
        """Allocate.

        Args:
            max_nodes: rows of the largest step, padding included.
            prefill_chunk: rows that a prefill runs at once.
            apart: see `StepBuffers`.

        Raises:
            ConfigError: the cache does not fit, or the rotary table is too short.
        """
        if model.rope.cos_sin.shape[0] < max_seq_len:
            raise ConfigError.for_field(
                "max_seq_len",
                max_seq_len,
                f"at most {model.rope.cos_sin.shape[0]}",
                "Load the model with the longer context.",
            )
        config, device = model.config, model.device
        self.model: CausalLM = replace(model, rope=model.rope.for_one_sequence())
        self.buffers = StepBuffers(max_nodes, max_path, top_k, device, apart=apart)
        self.cache = KVCache(
            config.num_layers,
            config.num_kv_heads,
            max_seq_len + max(max_nodes, max_path),
            config.head_dim,
            model.dtype,
            device,
        )
        self.activations = ForwardBuffers.allocate(
            config, max(max_nodes, prefill_chunk), model.dtype, device
        )
        self.logits: Tensor = torch.empty(
            max_nodes, config.vocab_size, dtype=model.logits_dtype, device=device
        )
        self.workspace: Tensor | None = None
        if model.ops.workspace_numel is not None:
            heads = config.num_heads, config.num_kv_heads, config.head_dim
            numel = model.ops.workspace_numel(max_nodes, *heads, self.cache.capacity)
            self.workspace = torch.empty(numel, dtype=torch.float32, device=device)

    @property
    def rewritten(self) -> list[Tensor]:
        """What every step writes before it reads it: whatever else it held must not matter."""
        activations = [getattr(self.activations, f.name) for f in fields(self.activations)]
        workspace = [] if self.workspace is None else [self.workspace]
        return [*self.buffers.rewritten, *activations, self.logits, *workspace]
