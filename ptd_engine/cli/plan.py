"""`ptd-engine plan`: memory and the fastest possible step, from a checkpoint's headers alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ptd_engine.cli import options as opt
from ptd_engine.cli.report import print_table, write_json
from ptd_engine.errors import ConfigError, UnavailableError

if TYPE_CHECKING:
    import torch

# About what two channels of DDR4-2400 sustain: a modest desktop.
DEFAULT_BANDWIDTH_GB_S = 30.0
# Beyond any memory on either side; within, every figure of the report is a plain number.
MAX_MEMORY_GB = 1e9
MIN_BANDWIDTH_GB_S, MAX_BANDWIDTH_GB_S = 1e-3, 1e9


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
    memory_gb: Annotated[
        float | None,
        typer.Option(
            "--memory-gb",
            metavar="G",
            help="Memory that may be taken, in 10^9 bytes; of each rank. Default: what the device "
            "has left, if it is on this machine.",
            show_default=False,
        ),
    ] = None,
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
    Exit status 2 where it does not fit in memory; the largest context that fits is named.
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
    from ptd_engine.memory_plan import Planner
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
    precision = resolve_precision(dtype, checkpoint.dtype_name, target, kernels)
    needs = make_drafter(spec, device_type=target.type).needs()
    planner = Planner(
        checkpoint,
        precision=precision,
        device=target,
        kernels=kernels,
        max_nodes=1 + needs.max_nodes,
        top_k=needs.top_k,
        ranks=tensor_parallel,
    )
    found = planner.at(length)
    available = _available(target, memory_gb)
    longest = None if available is None else planner.largest(available)
    per_token, read = found.kv_bytes_per_token, found.step_read_bytes
    document = {
        "model": model,
        "dtype": precision.name,
        "device": target.type,
        "tensor_parallel": tensor_parallel,
        "max_seq_len": length,
        "step_rows": found.step_rows,
        "parameters": found.parameters,
        "weight_bytes": found.weight_bytes,
        "kv_cache_bytes": found.kv_cache_bytes,
        "kv_bytes_per_token": per_token,
        "step_buffer_bytes": found.step_buffer_bytes,
        "workspace_bytes": found.workspace_bytes,
        "graphs": found.graphs,
        "graph_pool_bytes_estimate": found.graph_pool_bytes,
        "total_bytes": found.total_bytes,
        "available_bytes": available,
        "largest_max_seq_len": longest,
        "fits": None if available is None else found.total_bytes <= available,
        "bandwidth_gb_s": bandwidth_gb_s,
        "step_read_bytes": read,
        "roofline_step_s_empty": read / (bandwidth_gb_s * 1e9),
        "roofline_step_s_full": (read + per_token * length) / (bandwidth_gb_s * 1e9),
    }
    _print(document, found.tied_copy)
    write_json(document)
    planner.check(length, available, target.type)


def _device(name: str) -> torch.device:
    """The device to plan for; it need not be on this machine."""
    import torch

    from ptd_engine.llm_arguments import resolve_device

    try:
        return resolve_device(name)
    except UnavailableError:
        return torch.device(name)


def _available(device: torch.device, memory_gb: float | None) -> int | None:
    """Bytes that may be taken; None for a device that is not here, unless it was said."""
    import torch

    from ptd_engine.kv_cache import available_bytes

    if memory_gb is not None:
        if not 0 < memory_gb <= MAX_MEMORY_GB:  # refuses NaN too
            raise ConfigError.for_field(
                "--memory-gb",
                memory_gb,
                f"a number above 0, up to {MAX_MEMORY_GB:g}",
                "The unit is 10^9 bytes.",
            )
        return int(memory_gb * 1e9)
    if device.type == "cuda" and not torch.cuda.is_available():
        return None
    return available_bytes(device)


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
    if document["workspace_bytes"]:
        table.add_row("workspace of the kernels", _mib(document["workspace_bytes"]))
    if document["graphs"]:
        table.add_row(
            f"{document['graphs']} captured graphs, an estimate",
            _mib(document["graph_pool_bytes_estimate"]),
        )
    known = document["available_bytes"] is not None
    table.add_row("total", _mib(document["total_bytes"]), end_section=not known)
    if known:
        table.add_row("available", _mib(document["available_bytes"]))
        longest = document["largest_max_seq_len"]
        table.add_row(
            "longest context that fits",
            "none" if longest is None else f"{longest:,} tokens",
            end_section=True,
        )
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
