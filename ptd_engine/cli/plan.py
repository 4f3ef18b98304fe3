"""`ptd-engine plan`: memory and the fastest possible step, from a checkpoint's headers alone."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from ptd_engine.cli import options as opt
from ptd_engine.cli.report import print_table, write_json
from ptd_engine.errors import CheckpointError, ConfigError, UnavailableError

if TYPE_CHECKING:
    import torch

    from ptd_engine.checkpoint import Checkpoint
    from ptd_engine.kernels import Ops
    from ptd_engine.model import CausalLM, ModelConfig
    from ptd_engine.model.precision import Precision
    from ptd_engine.runner import EagerRunner

# About what two channels of DDR4-2400 sustain: a modest desktop.
DEFAULT_BANDWIDTH_GB_S = 30.0
# Beyond any memory on either side; within, every figure of the report is a plain number.
MIN_BANDWIDTH_GB_S, MAX_BANDWIDTH_GB_S = 1e-3, 1e9
_LISTED = 5


@dataclass(frozen=True, slots=True)
class _Weights:
    """Bytes in memory, and those of them that every step reads (one embedding row is nothing)."""

    parameters: int
    held: int
    read: int
    tied_copy: bool


def plan(
    model: opt.Model,
    max_seq_len: opt.MaxSeqLen = None,
    bandwidth_gb_s: Annotated[
        float,
        typer.Option(
            "--bandwidth-gb-s",
            metavar="B",
            help="Memory bandwidth to assume, in 10^9 bytes/s. The default is a modest desktop's; "
            "an H200 has about 4800.",
        ),
    ] = DEFAULT_BANDWIDTH_GB_S,
    drafter: opt.Drafter = None,
    width: opt.Width = None,
    depth: opt.Depth = None,
    dtype: opt.Dtype = "auto",
    device: opt.Device = "auto",
    kernels: opt.Kernels = "auto",
    tensor_parallel: Annotated[
        int,
        typer.Option(
            "--tensor-parallel",
            metavar="N",
            help="Ranks that share the weights and the cache. All bytes are those of rank N - 1, "
            "which has the most, and the bandwidth is each rank's.",
        ),
    ] = 1,
) -> None:
    """Tell what a model will need: bytes, and the roofline of a step. No weight is loaded.

    Decoding one request reads every weight and the whole cache once a step, so a step takes at
    least these bytes over the bandwidth. Prints a table and, as the last line, one JSON object.
    """
    if not MIN_BANDWIDTH_GB_S <= bandwidth_gb_s <= MAX_BANDWIDTH_GB_S:  # refuses NaN too
        raise ConfigError.for_field(
            "--bandwidth-gb-s",
            bandwidth_gb_s,
            f"a number of {MIN_BANDWIDTH_GB_S:g} .. {MAX_BANDWIDTH_GB_S:g}",
            "The unit is 10^9 bytes/s.",
        )
    spec = opt.drafter_spec(drafter, width, depth)
    from ptd_engine import hub
    from ptd_engine.checkpoint import open_checkpoint
    from ptd_engine.drafters import make_drafter
    from ptd_engine.llm import DEFAULT_MAX_SEQ_LEN
    from ptd_engine.model import ModelConfig
    from ptd_engine.model.precision import resolve_precision

    target = _device(device)
    checkpoint = open_checkpoint(hub.resolve_model(model))
    config = ModelConfig.from_hf(checkpoint.config)
    length = (
        min(config.max_position_embeddings, DEFAULT_MAX_SEQ_LEN)
        if max_seq_len is None
        else max_seq_len
    )
    if length < 2:
        raise ConfigError.for_field("--max-seq-len", length, "an integer >= 2")
    config.check_context(length)
    whole, config = config, _rank_config(config, checkpoint, tensor_parallel)
    precision = resolve_precision(dtype, checkpoint.dtype_name, target, kernels)
    needs = make_drafter(spec, device_type=target.type).needs()
    ops = _ops(kernels, config, precision, target)
    weights = _weights(checkpoint, whole, config, precision, ops, tensor_parallel)
    runner = _dry_runner(config, precision, ops, length, 1 + needs.max_nodes, needs.top_k)
    cache = runner.cache.nbytes
    per_token = cache // runner.cache.capacity
    buffers = _step_bytes(runner, config, 1 + needs.max_nodes)
    document = {
        "model": model,
        "dtype": precision.name,
        "device": target.type,
        "tensor_parallel": tensor_parallel,
        "max_seq_len": length,
        "step_rows": 1 + needs.max_nodes,
        "parameters": weights.parameters,
        "weight_bytes": weights.held,
        "kv_cache_bytes": cache,
        "kv_bytes_per_token": per_token,
        "step_buffer_bytes": buffers,
        "total_bytes": weights.held + cache + buffers,
        "bandwidth_gb_s": bandwidth_gb_s,
        "step_read_bytes": weights.read,
        "roofline_step_s_empty": weights.read / (bandwidth_gb_s * 1e9),
        "roofline_step_s_full": (weights.read + per_token * length) / (bandwidth_gb_s * 1e9),
    }
    _print(document, weights.tied_copy)
    write_json(document)


def _rank_config(config: ModelConfig, checkpoint: Checkpoint, ranks: int) -> ModelConfig:
    """The config of a rank's part of the model."""
    from ptd_engine.model import ModelConfig
    from ptd_engine.tensor_parallel import Partition

    part = Partition(config, ranks - 1, ranks)
    return config if ranks == 1 else ModelConfig.from_hf(part.local(checkpoint.config))


def _device(name: str) -> torch.device:
    """The device to plan for; it need not be on this machine."""
    import torch

    from ptd_engine.llm import resolve_device

    try:
        return resolve_device(name)
    except UnavailableError:
        return torch.device(name)


def _ops(
    kernels: str, config: ModelConfig, precision: Precision, device: torch.device
) -> Ops | None:
    """The kernels that would serve; None for a device that is not on this machine."""
    from ptd_engine.kernels import select_ops

    if device.type != "cpu":
        return None
    dtype, weight_format = precision.dtype, precision.weight_format
    return select_ops(
        kernels,
        device,
        dtype,
        config.head_dim,
        weight_format=weight_format,
        query_group=config.num_heads // config.num_kv_heads,
        kv_heads=config.num_kv_heads,
    )


def _weights(
    checkpoint: Checkpoint,
    whole: ModelConfig,
    config: ModelConfig,
    precision: Precision,
    ops: Ops | None,
    ranks: int,
) -> _Weights:
    """Of the model `whole`, one rank's part `config`; the parameters are all ranks' together."""
    from ptd_engine.model.weights import expected_shapes, fused_shapes
    from ptd_engine.tensor_parallel.partition import head_rows

    shapes = expected_shapes(whole)
    missing = sorted(set(shapes) - set(checkpoint.names()))
    if missing:
        more = f" and {len(missing) - _LISTED} more" if len(missing) > _LISTED else ""
        raise CheckpointError(
            f"the checkpoint lacks {len(missing)} tensors of a {config.architecture} model: "
            f"{', '.join(missing[:_LISTED])}{more}. Is the download complete?"
        )
    itemsize = precision.dtype.itemsize

    def matrix(rows: int, columns: int, *, bias: bool = False, **role: bool) -> int:
        if ops is not None and ops.packed_nbytes is not None:
            return ops.packed_nbytes(rows, columns, bias=bias, **role)
        return (rows * columns + (rows if bias else 0)) * itemsize

    norms = sum(shape[0] for name, shape in shapes.items() if name.endswith("norm.weight"))
    layers = sum(matrix(rows, columns, bias=bias) for rows, columns, bias in fused_shapes(config))
    head = matrix(
        len(head_rows(config.vocab_size, ranks - 1, ranks)), config.hidden_size, head=True
    )
    read = norms * itemsize + layers * config.num_layers + head
    shared = config.tie_word_embeddings and ranks == 1 and (ops is None or ops.shares_embedding)
    embedding = 0 if shared else matrix(config.vocab_size, config.hidden_size, embed=True)
    parameters = sum(math.prod(shape) for shape in shapes.values())
    tied_copy = config.tie_word_embeddings and not shared
    return _Weights(parameters, read + embedding, read, tied_copy)


def _dry_runner(
    config: ModelConfig,
    precision: Precision,
    ops: Ops | None,
    max_seq_len: int,
    max_nodes: int,
    top_k: int,
) -> EagerRunner:
    """The runner that a model would get, on torch's meta device: sizes without memory."""
    import torch

    from ptd_engine.kernels import select_ops
    from ptd_engine.model import CausalLM
    from ptd_engine.model.rope import RopeTable
    from ptd_engine.runner import EagerRunner

    nothing = cast(Any, None)  # no weight is touched before the first step
    model: CausalLM = CausalLM(
        config=config,
        weights=nothing,
        rope=RopeTable(config, max_seq_len, "meta"),
        ops=select_ops("torch") if ops is None else ops,
        device=torch.device("meta"),
        dtype=precision.dtype,
        num_parameters=0,
        weight_bytes=0,
        precision=precision.name,
    )
    return EagerRunner(model, max_seq_len=max_seq_len, max_nodes=max_nodes, top_k=top_k)


def _step_bytes(runner: EagerRunner, config: ModelConfig, rows: int) -> int:
    """Activations, logits, rotary table, plan and output of a step."""
    activations = sum(
        getattr(runner.activations, field.name).nbytes for field in fields(runner.activations)
    )
    logits = rows * config.vocab_size * runner.model.logits_dtype.itemsize
    staged = runner.staging.nbytes + runner.buffers.host_output.nbytes
    return int(activations + logits + runner.model.rope.cos_sin.nbytes + staged)


def _print(document: dict[str, Any], tied_copy: bool) -> None:
    from rich.table import Table

    count = document["tensor_parallel"]
    ranks = "" if count == 1 else f"one of {count} ranks: "
    table = Table(
        "",
        show_header=False,
        title=f"{ranks}{document['max_seq_len']} tokens of context, {document['dtype']} on "
        f"{document['device']}, steps of up to {document['step_rows']} rows",
    )
    table.add_column("", justify="right")
    table.add_row("parameters", f"{document['parameters']:,}")
    copy = " (with a packed copy of the tied output matrix)" if tied_copy else ""
    table.add_row(f"weights{copy}", _mib(document["weight_bytes"]))
    table.add_row("KV cache", _mib(document["kv_cache_bytes"]))
    table.add_row("  of it, per token", f"{document['kv_bytes_per_token']:,} bytes")
    table.add_row("step buffers", _mib(document["step_buffer_bytes"]))
    table.add_row("total", _mib(document["total_bytes"]), end_section=True)
    table.add_row("weights read a step", _mib(document["step_read_bytes"]))
    for label, key in (("empty", "roofline_step_s_empty"), ("full", "roofline_step_s_full")):
        step = document[key]
        table.add_row(
            f"shortest step at {document['bandwidth_gb_s']:g} GB/s, context {label}",
            f"{step * 1e3:.2f} ms ({1 / step:.0f} steps/s)",
        )
    print_table(table)


def _mib(count: int) -> str:
    return f"{count / 2**20:,.1f} MiB"
