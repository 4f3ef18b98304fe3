"""From a checkpoint to a model: names and shapes checked both ways, weights fused and packed layer
by layer.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from ptd_engine.checkpoint import Checkpoint, open_checkpoint
from ptd_engine.checkpoint.memory import is_out_of_memory, out_of_memory
from ptd_engine.errors import CheckpointError
from ptd_engine.kernels import LinearWeight, Ops, select_ops
from ptd_engine.model.config import ModelConfig
from ptd_engine.model.forward import CausalLM, LayerWeights, ModelWeights
from ptd_engine.model.precision import resolve_precision
from ptd_engine.model.rope import RopeTable

_log = logging.getLogger(__name__)
_EMBED, _NORM, _HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"
# Buffers that old exports stored beside the weights; they are derived from the config.
_DERIVED = re.compile(r"rotary_emb\.inv_freq$|\.masked_bias$|\.attn\.bias$")
_LISTED = 8


def load_model(
    source: str | Path | Checkpoint,
    *,
    dtype: str | torch.dtype = "auto",
    device: str | torch.device = "cpu",
    kernels: str | Ops = "auto",
    overrides: Mapping[str, str] | None = None,
    max_seq_len: int | None = None,
    num_threads: int | None = None,
    head_rows: range | None = None,
) -> CausalLM:
    """Load a model from a directory with safetensors files, a GGUF file, or an open checkpoint.

    Args:
        source: a local directory, a .gguf file, or what offers the same.
        dtype: a name or torch dtype as `precision.resolve_precision` takes it.
        device: where the weights go.
        kernels: backend name for `select_ops`, or ops that are already chosen.
        overrides: op -> backend, for `select_ops`.
        max_seq_len: length of the rotary table; None takes the model's max_position_embeddings.
        num_threads: threads of CPU kernels; None takes torch's number.
        head_rows: rows of the output matrix that are kept (an untied one has no others in `source`
            then); None: all.

    Raises:
        CheckpointError: files missing, incomplete, or not of a supported model.
        ConfigError: bad dtype, kernels or max_seq_len.
    """
    device = torch.device(device)
    checkpoint = open_checkpoint(Path(source)) if isinstance(source, str | Path) else source
    config = ModelConfig.from_hf(checkpoint.config).with_eos(
        checkpoint.generation_config.get("eos_token_id"), "generation_config.json: eos_token_id"
    )
    limit = config.max_position_embeddings if max_seq_len is None else max_seq_len
    config.check_context(limit)
    wanted = kernels if isinstance(kernels, str) else "auto"
    precision = resolve_precision(dtype, checkpoint.dtype_name, device, wanted)
    ops = (
        kernels
        if isinstance(kernels, Ops)
        else select_ops(
            kernels,
            device,
            precision.dtype,
            config.head_dim,
            overrides,
            weight_format=precision.weight_format,
            num_threads=num_threads,
            query_group=config.num_heads // config.num_kv_heads,
            kv_heads=config.num_kv_heads,
        )
    )
    try:
        weights, parameters = load_weights(
            checkpoint, config, ops, precision.dtype, device, head_rows
        )
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise out_of_memory(source if isinstance(source, str | Path) else "the model") from error
    return CausalLM(
        config=config,
        weights=weights,
        rope=RopeTable(config, limit, device),
        ops=ops,
        device=device,
        dtype=precision.dtype,
        num_parameters=parameters,
        weight_bytes=_step_bytes(weights),
        precision=precision.name,
    )


def expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Return name -> shape of every tensor the model needs (without lm_head where embeddings are
    tied).
    """
    hidden, inner, dim = config.hidden_size, config.intermediate_size, config.head_dim
    q_out, kv_out = config.num_heads * dim, config.num_kv_heads * dim
    projections = {
        "self_attn.q_proj": (q_out, hidden, config.qkv_bias),
        "self_attn.k_proj": (kv_out, hidden, config.qkv_bias),
        "self_attn.v_proj": (kv_out, hidden, config.qkv_bias),
        "self_attn.o_proj": (hidden, q_out, config.o_bias),
        "mlp.gate_proj": (inner, hidden, config.mlp_bias),
        "mlp.up_proj": (inner, hidden, config.mlp_bias),
        "mlp.down_proj": (hidden, inner, config.mlp_bias),
    }
    shapes: dict[str, tuple[int, ...]] = {_EMBED: (config.vocab_size, hidden)}
    for index in range(config.num_layers):
        prefix = f"model.layers.{index}."
        shapes[prefix + "input_layernorm.weight"] = (hidden,)
        shapes[prefix + "post_attention_layernorm.weight"] = (hidden,)
        if config.qk_norm:
            shapes[prefix + "self_attn.q_norm.weight"] = (dim,)
            shapes[prefix + "self_attn.k_norm.weight"] = (dim,)
        for name, (rows, columns, bias) in projections.items():
            shapes[f"{prefix}{name}.weight"] = (rows, columns)
            if bias:
                shapes[f"{prefix}{name}.bias"] = (rows,)
    shapes[_NORM] = (hidden,)
    if not config.tie_word_embeddings:
        shapes[_HEAD] = (config.vocab_size, hidden)
    return shapes


def fused_shapes(config: ModelConfig) -> tuple[tuple[int, int, bool], ...]:
    """(outputs, inputs, bias) of the matrices of one layer, as they are packed."""
    hidden, inner, dim = config.hidden_size, config.intermediate_size, config.head_dim
    q_out, kv_out = config.num_heads * dim, config.num_kv_heads * dim
    return (
        (q_out + 2 * kv_out, hidden, config.qkv_bias),
        (hidden, q_out, config.o_bias),
        (2 * inner, hidden, config.mlp_bias),
        (hidden, inner, config.mlp_bias),
    )


def _listing(names: list[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more


def _check_names(config: ModelConfig, stored: set[str], needed: set[str]) -> None:
    missing = sorted(needed - stored)
    if missing == [_HEAD]:
        raise CheckpointError(
            "the checkpoint has no lm_head.weight, but tie_word_embeddings is false. Set it to "
            "true in config.json "
            "if this model shares its embedding with the output, else the checkpoint is incomplete."
        )
    if missing:
        raise CheckpointError(
            f"the checkpoint lacks {len(missing)} tensors of a {config.architecture} model: "
            f"{_listing(missing)}. "
            "Is the download complete, and does config.json belong to it?"
        )
    unexpected = sorted(name for name in stored - needed if not _DERIVED.search(name))
    if config.tie_word_embeddings and _HEAD in unexpected:
        unexpected.remove(_HEAD)
        _log.warning(
            "tie_word_embeddings is true, yet lm_head.weight is stored as well: using "
            "model.embed_tokens.weight."
        )
    if unexpected:
        raise CheckpointError(
            f"the checkpoint holds {len(unexpected)} tensors that a {config.architecture} model "
            "with this "
            f"config does not have: {_listing(unexpected)}. Ignoring them would change the model's "
            "output; "
            "check config.json (attention_bias, architectures)."
        )


class _Reader:
    """Reads tensors with the expected shape, in the target dtype, on the target device."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        shapes: dict[str, tuple[int, ...]],
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._checkpoint, self._shapes = checkpoint, shapes
        self._dtype, self._device = dtype, device
        self.parameters = 0

    def get(self, name: str) -> Tensor:
        tensor, shape = self._checkpoint.tensor(name), self._shapes[name]
        if tuple(tensor.shape) != shape:
            hint = "config.json does not belong to these weights."
            if name in (_EMBED, _HEAD) and tensor.shape[1:] == shape[1:]:
                hint = (
                    f"The matrix has {tensor.shape[0]} rows but vocab_size is {shape[0]}: tokens "
                    "were added. "
                    f"Set vocab_size to {tensor.shape[0]} in config.json, or save the model again."
                )
            raise CheckpointError.for_field(
                f"shape of {name}", list(tensor.shape), f"{list(shape)}", hint
            )
        self.parameters += tensor.numel()
        return tensor.to(device=self._device, dtype=self._dtype).contiguous()

    def fused(self, ops: Ops, *names: str) -> LinearWeight:
        """Concatenate the projections `names` (without ".weight") along their outputs and pack
        them.
        """
        parts = [self.get(f"{name}.weight") for name in names]
        biases = [self.get(f"{name}.bias") for name in names if f"{name}.bias" in self._shapes]
        weight = parts[0] if len(parts) == 1 else torch.cat(parts)
        return ops.pack_linear(weight, torch.cat(biases) if biases else None)


def load_weights(
    checkpoint: Checkpoint,
    config: ModelConfig,
    ops: Ops,
    dtype: torch.dtype,
    device: torch.device,
    head_rows: range | None = None,
) -> tuple[ModelWeights, int]:
    """Read, check, fuse and pack all weights; returns them and the number of parameters.

    `head_rows` as for `load_model`.

    Raises:
        CheckpointError: tensors missing, unexpected or of the wrong shape, each named.
    """
    shapes = expected_shapes(config)
    _check_names(config, set(checkpoint.names()), set(shapes))
    if head_rows is not None and _HEAD in shapes:
        shapes[_HEAD] = (len(head_rows), config.hidden_size)
    read = _Reader(checkpoint, shapes, dtype, device)
    tied = config.tie_word_embeddings
    matrix = read.get(_EMBED)
    whole = head_rows is None
    shared = tied and whole and ops.shares_embedding
    embed = ops.pack_embed(matrix, tied=tied and whole)
    # Where the packed embedding serves as the output matrix too, no second copy outlives this.
    unpacked_head = matrix if tied and not shared else None
    if unpacked_head is not None and head_rows is not None:
        unpacked_head = matrix[head_rows.start : head_rows.stop].clone()
    del matrix
    layers: list[LayerWeights] = []
    for index in range(config.num_layers):
        layer = f"model.layers.{index}."
        attention, mlp = layer + "self_attn.", layer + "mlp."
        layers.append(
            LayerWeights(
                input_norm=read.get(layer + "input_layernorm.weight"),
                qkv=read.fused(
                    ops, attention + "q_proj", attention + "k_proj", attention + "v_proj"
                ),
                q_norm=read.get(attention + "q_norm.weight") if config.qk_norm else None,
                k_norm=read.get(attention + "k_norm.weight") if config.qk_norm else None,
                o=read.fused(ops, attention + "o_proj"),
                post_norm=read.get(layer + "post_attention_layernorm.weight"),
                gate_up=read.fused(ops, mlp + "gate_proj", mlp + "up_proj"),
                down=read.fused(ops, mlp + "down_proj"),
            )
        )
    norm = read.get(_NORM)
    if shared:
        head = embed
    else:
        source = read.get(_HEAD) if unpacked_head is None else unpacked_head
        head = ops.pack_linear(source, None, head=True)
    weights = ModelWeights(embed, tuple(layers), norm, head)
    return weights, read.parameters


def _step_bytes(weights: ModelWeights) -> int:
    total = weights.norm.nbytes + weights.lm_head.nbytes
    for layer in weights.layers:
        total += layer.input_norm.nbytes + layer.post_norm.nbytes
        total += layer.qkv.nbytes + layer.o.nbytes + layer.gate_up.nbytes + layer.down.nbytes
    return total
