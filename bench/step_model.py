"""The time of a step, computed: bytes over bandwidth or operations over arithmetic, whichever is
longer (see `Device.overlap`), for every kernel, plus launches, sums over ranks and the host.

It is the traffic of docs/kernels.md as a function. A prediction, not a measurement.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

from bench.gpus import Device
from ptd_engine.model import ModelConfig
from ptd_engine.model.weights import fused_shapes

# Launches: of a layer with the fused operations and with single ones, and of a step besides.
FUSED_LAUNCHES, SINGLE_LAUNCHES, STEP_LAUNCHES = 6, 10, 8
_TILE, _SPLIT, _PROGRAMS = 64, 256, 512  # positions; see ptd_engine.triton_kernels
_TAIL_TILES = 1.5  # of the attention's gathered ones, on average


@dataclass(frozen=True)
class StepTime:
    """Seconds of one step by what they are spent on.

    Attributes:
        weights: all matrices of the layers and the output matrix.
        attention: the prefix, from memory or at the limit of arithmetic.
        partial: partial results, gathered tiles and logits, in L2.
        launches: between kernels, or of the host where it launches them one by one.
        sums: over ranks.
        host: plan, commit, the plan's way to other ranks, and waiting.
    """

    weights: float
    attention: float
    partial: float
    launches: float
    sums: float
    host: float

    @property
    def total(self) -> float:
        """All of them: one after the other."""
        return math.fsum(asdict(self).values())


@dataclass(frozen=True)
class StepModel:
    """The step of one model on one kind of device.

    Attributes:
        device: where.
        config: of one rank's part of the model.
        hidden_bytes: of one number of activations and cache.
        weight_bytes: that a step reads, of one rank.
        head_rows: of the output matrix, of one rank.
        ranks: that share the model.
        graphs: steps are captured; else the host launches every kernel.
        fused: a layer in six launches.
    """

    device: Device
    config: ModelConfig
    weight_bytes: float
    head_rows: int
    hidden_bytes: int = 2
    ranks: int = 1
    graphs: bool = True
    fused: bool = True

    def time(self, rows: int, prefix: int, host_us: float = 0.0) -> StepTime:
        """Seconds of a step.

        Args:
            rows: computed, padding included.
            prefix: committed tokens.
            host_us: plan and commit.
        """
        launches = self.launches
        device_s = launches * self.device.launch_us * 1e-6
        weights, attention = self._weights(rows), self._attention(rows, prefix)
        partial, sums = self._partial(rows, prefix), self._sums(rows)
        if not self.graphs:
            # The host runs ahead of the device, or the device waits for it.
            busy = weights + attention + partial + sums + device_s
            device_s += max(0.0, launches * self.device.eager_launch_us * 1e-6 - busy)
        host = (host_us + self.device.sync_us) * 1e-6
        if self.ranks > 1:
            host += self.device.broadcast_us * 1e-6
        return StepTime(weights, attention, partial, device_s, sums, host)

    @property
    def launches(self) -> int:
        """Kernels of a step."""
        per_layer = FUSED_LAUNCHES if self.fused else SINGLE_LAUNCHES
        return per_layer * self.config.num_layers + STEP_LAUNCHES

    def idle(self, rows: int, prefix: int, bound: int) -> float:
        """Seconds that a step loses where the grid of its graph covers `bound` >= prefix tokens."""
        config, split = self.config, _split(bound, self.config.num_kv_heads)
        blocks = -(-rows * (config.num_heads // config.num_kv_heads) // _TILE)
        splits = -(-bound // split) - -(-prefix // split)
        programs = blocks * config.num_kv_heads * splits * config.num_layers
        return programs * self.device.exit_ns * 1e-9

    def kv_bytes(self, prefix: int) -> int:
        """Of keys and values of so many tokens, all layers, one rank."""
        config = self.config
        row = 2 * config.num_layers * config.num_kv_heads * config.head_dim
        return row * prefix * self.hidden_bytes

    @property
    def _bytes_s(self) -> float:
        return self.device.bandwidth_gb_s * self.device.bandwidth_share * 1e9

    @property
    def _flops_s(self) -> float:
        return self.device.tflops * self.device.flops_share * 1e12

    def _longer(self, moved: float, operations: float) -> float:
        """Seconds of a kernel: its reads or its arithmetic, and what of the other is not hidden."""
        reads, arithmetic = moved / self._bytes_s, operations / self._flops_s
        hidden = self.device.overlap * min(reads, arithmetic)
        return reads + arithmetic - hidden

    def _weights(self, rows: int) -> float:
        """Matrix by matrix: a small one may be bound by bytes where another is not."""
        config = self.config
        shapes = [(out, inputs, config.num_layers) for out, inputs, _ in fused_shapes(config)]
        shapes.append((self.head_rows, config.hidden_size, 1))
        elements = sum(out * inputs * count for out, inputs, count in shapes)
        each = self.weight_bytes / elements
        padded = _up(rows, self.device.tile_rows)
        seconds = 0.0
        for out, inputs, count in shapes:
            moved = out * inputs * each + rows * (out + inputs) * self.hidden_bytes
            operations = 2 * padded * out * inputs
            seconds += count * self._longer(moved, operations)
        return seconds

    def _attention(self, rows: int, prefix: int) -> float:
        config = self.config
        group = config.num_heads // config.num_kv_heads
        packed = _up(rows * group, self.device.tile_rows) * config.num_kv_heads
        operations = 4 * packed * prefix * config.head_dim * config.num_layers
        return self._longer(self.kv_bytes(prefix), operations)

    def _partial(self, rows: int, prefix: int) -> float:
        """Written and read in L2: the attention's states and gathered tiles, the logits."""
        config, split = self.config, _split(prefix, self.config.num_kv_heads)
        states = 2 * 4 * rows * config.num_heads * (config.head_dim + 2) * -(-prefix // split)
        tiles = 2 * rows * config.num_kv_heads * _TAIL_TILES * _TILE * config.head_dim
        layers = config.num_layers * (states + tiles * self.hidden_bytes)
        logits = 2 * 4 * rows * self.head_rows
        return (layers + logits) / (self.device.l2_gb_s * 1e9)

    def _sums(self, rows: int) -> float:
        """Two sums a layer over the ranks, as a ring, and the logits to rank 0."""
        if self.ranks == 1:
            return 0.0
        config, device = self.config, self.device
        moved = 2 * (self.ranks - 1) / self.ranks * rows * config.hidden_size * self.hidden_bytes
        each = device.link_latency_us * 1e-6 + moved / (device.link_gb_s * 1e9)
        gathered = 4 * rows * self.head_rows * (self.ranks - 1) / (device.link_gb_s * 1e9)
        return 2 * config.num_layers * each + device.link_latency_us * 1e-6 + gathered


def _split(length: int, kv_heads: int) -> int:
    """Positions of a split of the attention over so many."""
    split = _SPLIT
    while -(-length // split) * kv_heads > _PROGRAMS:
        split *= 2
    return split


def _up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
