"""GPUs and what limits a step on them: figures of their makers' data sheets, and assumptions.

Nothing here was measured by this project. Bandwidth, arithmetic (dense, without sparsity) and links
are the data sheets'; what a kernel reaches of them, and the microseconds of launches and waits, are
assumptions that every prediction names and the command line may replace.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_SHEET = "NVIDIA, {} data sheet"


@dataclass(frozen=True)
class Device:
    """What a step's time is computed from.

    Attributes:
        name: of the device.
        source: where bandwidth, arithmetic, memory and links are from.
        memory_gb: 10^9 bytes.
        bandwidth_gb_s: of the memory, 10^9 bytes/s, by the source.
        bandwidth_share: of it that streaming kernels reach.
        tflops: 10^12 dense operations/s in bf16 with fp32 sums.
        flops_share: of it that kernels reach.
        overlap: how much of a kernel's arithmetic hides behind its reads: 1 all, 0 nothing.
        l2_gb_s: at which partial results and gathered rows move.
        link_gb_s: to each other device, one way.
        link_latency_us: of one sum over devices.
        launch_us: of one kernel within a captured graph.
        eager_launch_us: of one that the host launches.
        broadcast_us: of a step's plan, from rank 0 to the others.
        sync_us: the host's part of a step besides plan and commit: launch the graph, wait, wake.
        exit_ns: that an idle program of the attention adds, many at once.
        tile_rows: rows that a product is padded to.
    """

    name: str
    source: str
    memory_gb: float
    bandwidth_gb_s: float
    tflops: float
    link_gb_s: float
    l2_gb_s: float = 5000.0
    bandwidth_share: float = 0.9
    flops_share: float = 0.6
    overlap: float = 1.0
    link_latency_us: float = 10.0
    launch_us: float = 1.3
    eager_launch_us: float = 6.0
    broadcast_us: float = 150.0
    sync_us: float = 15.0
    exit_ns: float = 5.0
    tile_rows: int = 64


GPUS: Mapping[str, Device] = {
    "a100": Device("A100 80GB SXM", _SHEET.format("A100 80GB"), 80, 2039, 312, 300),
    "h100": Device("H100 SXM", _SHEET.format("H100"), 80, 3350, 989, 450),
    "h200": Device("H200", _SHEET.format("H200"), 141, 4800, 989, 450),
    "b200": Device("B200", _SHEET.format("HGX B200"), 180, 8000, 2250, 900, l2_gb_s=8000),
    "rtx4090": Device(
        "RTX 4090",
        "NVIDIA, Ada architecture paper; PCIe 4.0 x16",
        24,
        1008,
        165,
        25,
        link_latency_us=25,
    ),
    "l40s": Device(
        "L40S", f"{_SHEET.format('L40S')}; PCIe 4.0 x16", 48, 864, 362, 25, link_latency_us=25
    ),
    "l4": Device(
        "L4", f"{_SHEET.format('L4')}; PCIe 4.0 x16", 24, 300, 121, 25, link_latency_us=25
    ),
}
# Where the assumptions are from, by field.
ASSUMED: Mapping[str, str] = {
    "bandwidth_share": "a copy on an H200 reaches 4.3 of 4.8 TB/s",
    "flops_share": "a guess; it counts from about 128 rows on, and with long prefixes",
    "overlap": "pipelined kernels; on the CPU of docs/simulate.md nearer to nothing",
    "l2_gb_s": "the round figure of docs/kernels.md",
    "launch_us": "Hazy Research's megakernel article: 1.3 us a kernel inside a graph",
    "eager_launch_us": "a guess for an operation of torch or Triton called from Python",
    "link_latency_us": "a guess for one small all-reduce of NCCL",
    "broadcast_us": "a guess for one small message through the loopback device",
    "sync_us": "a guess for the launch of a graph and the host's wake-up",
    "exit_ns": "a guess for a program that finds nothing to do",
    "tile_rows": "docs/kernels.md",
}
