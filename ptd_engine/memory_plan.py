"""What a model needs in memory, from its headers alone: nothing is loaded or allocated.

One count serves `ptd-engine plan` and whoever refuses before memory is taken. Weights, cache,
buffers and the kernels' workspace are counted; what captured graphs take is an estimate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any, cast

import torch

from ptd_engine.checkpoint import Checkpoint
from ptd_engine.errors import CheckpointError, ConfigError
from ptd_engine.kernels import Ops, select_ops
from ptd_engine.model import CausalLM, ModelConfig
from ptd_engine.model.config import MAX_CONTEXT
from ptd_engine.model.precision import Precision
from ptd_engine.model.rope import RopeTable
from ptd_engine.model.weights import expected_shapes, fused_shapes
from ptd_engine.runner import EagerRunner
from ptd_engine.runner.buckets import default_kv_buckets, default_node_buckets
from ptd_engine.tensor_parallel import Partition
from ptd_engine.tensor_parallel.partition import head_rows

# An estimate: vLLM's logs show 6 MiB a graph of 16 layers (vllm#11349) and 24 MiB for larger models
# (vllm#22897, vllm#50780), which is 40 to 60 KiB for each launch that it holds.
_LAUNCH_BYTES = 64 * 2**10
_LAYER_LAUNCHES, _STEP_LAUNCHES = 6, 8  # docs/kernels.md
# Kernels with split sums: most splits of a product, and the least positions of a split of the
# attention (a longer cache has longer ones, so this is the most).
_LINEAR_SPLITS = 4
_ATTENTION_PROGRAMS = 512
_ATTENTION_SPLIT = 256
_INT4_BLOCK_BYTES = 64 + 2 * 2 * 4  # of 128 inputs: nibbles, four scales and minimums in bf16
_MIN_CONTEXT = 2
_LISTED = 5


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes of one rank, on the device but for the pinned copies of plan and output.

    Attributes:
        max_seq_len, step_rows: what it is for.
        parameters: of the whole model.
        weight_bytes: in memory.
        step_read_bytes: those of them that a step reads (one embedding row is nothing).
        tied_copy: tied embeddings are there twice, the second time packed.
        kv_cache_bytes, kv_bytes_per_token: keys and values.
        step_buffer_bytes: activations, logits, rotary table, plan and output.
        workspace_bytes: what the GPU's kernels allocate within a step; 0 on a CPU.
        graphs: of one way to choose tokens, if every bucket is met.
        graph_pool_bytes: an estimate, for that many.
    """

    max_seq_len: int
    step_rows: int
    parameters: int
    weight_bytes: int
    step_read_bytes: int
    tied_copy: bool
    kv_cache_bytes: int
    kv_bytes_per_token: int
    step_buffer_bytes: int
    workspace_bytes: int
    graphs: int
    graph_pool_bytes: int

    @property
    def total_bytes(self) -> int:
        """Everything together."""
        buffers = self.step_buffer_bytes + self.workspace_bytes + self.graph_pool_bytes
        return self.weight_bytes + self.kv_cache_bytes + buffers


@dataclass(frozen=True, slots=True)
class WeightBytes:
    """Of one rank.

    Attributes:
        parameters: of the whole model.
        held: in memory.
        read: by a step: all but an embedding of its own, of which a row is nothing.
        tied_copy: tied embeddings are held twice.
    """

    parameters: int
    held: int
    read: int
    tied_copy: bool


def count_weights(
    whole: ModelConfig,
    config: ModelConfig,
    precision: Precision,
    ops: Ops | None = None,
    ranks: int = 1,
) -> WeightBytes:
    """Bytes of the weights.

    Args:
        whole: the model.
        config: the last rank's part of it; with one rank the same.
        precision: what they are stored in.
        ops: whose packing counts; None: that of the kernels for GPUs.
        ranks: that share the model.
    """
    itemsize, stored = precision.dtype.itemsize, precision.weight_format

    def matrix(rows: int, columns: int, *, bias: bool = False, **role: bool) -> int:
        if ops is not None and ops.packed_nbytes is not None:
            return ops.packed_nbytes(rows, columns, bias=bias, **role)
        biases = rows * itemsize if bias else 0
        if stored == "float" or role.get("embed"):
            return rows * columns * itemsize + biases
        if stored == "int8" or role.get("head"):  # int4 models keep the output matrix in int8
            return rows * (columns + 4) + biases
        return rows * -(-columns // 128) * _INT4_BLOCK_BYTES + biases

    shapes = expected_shapes(whole)
    norms = sum(shape[0] for name, shape in shapes.items() if name.endswith("norm.weight"))
    layers = sum(matrix(rows, columns, bias=bias) for rows, columns, bias in fused_shapes(config))
    head = matrix(
        len(head_rows(config.vocab_size, ranks - 1, ranks)), config.hidden_size, head=True
    )
    read = norms * itemsize + layers * config.num_layers + head
    one_layout = stored == "float" if ops is None else ops.shares_embedding
    shared = config.tie_word_embeddings and ranks == 1 and one_layout
    embedding = 0 if shared else matrix(config.vocab_size, config.hidden_size, embed=True)
    parameters = sum(math.prod(shape) for shape in shapes.values())
    tied_copy = config.tie_word_embeddings and not shared
    return WeightBytes(parameters, read + embedding, read, tied_copy)


def _check_names(checkpoint: Checkpoint, config: ModelConfig) -> None:
    missing = sorted(set(expected_shapes(config)) - set(checkpoint.names()))
    if missing:
        more = f" and {len(missing) - _LISTED} more" if len(missing) > _LISTED else ""
        raise CheckpointError(
            f"the checkpoint lacks {len(missing)} tensors of a {config.architecture} model: "
            f"{', '.join(missing[:_LISTED])}{more}. Is the download complete?"
        )


class Planner:
    """The memory of one model by the length of its context."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        precision: Precision,
        device: torch.device,
        kernels: str = "auto",
        max_nodes: int,
        top_k: int = 0,
        ranks: int = 1,
        graphs: bool = True,
    ) -> None:
        """Read the headers.

        Args:
            checkpoint: of the whole model.
            precision: what will be computed in.
            device: it need not be on this machine.
            kernels: their packing decides the bytes of the weights on a CPU.
            max_nodes: rows of the largest step, root included.
            top_k: successor ids a row in the output.
            ranks: that share the model; the bytes are those of the last, which has the most.
            graphs: steps are captured, where the device has graphs.

        Raises:
            CheckpointError: tensors are missing.
            ConfigError: the model cannot be cut into as many parts, unknown kernels.
        """
        self._whole = ModelConfig.from_hf(checkpoint.config)
        part = Partition(self._whole, ranks - 1, ranks)
        local = checkpoint.config if ranks == 1 else part.local(checkpoint.config)
        self._config = ModelConfig.from_hf(local)
        self._precision, self._ranks = precision, ranks
        self._on_gpu = device.type == "cuda"
        self._graphs = graphs and self._on_gpu and ranks == 1
        self._max_nodes, self._top_k = max_nodes, top_k
        # Of a device that may not be here the kernels cannot be asked.
        self._ops = None if self._on_gpu else self._select(kernels, device)
        _check_names(checkpoint, self._whole)
        self._weights = count_weights(self._whole, self._config, precision, self._ops, ranks)

    def at(self, max_seq_len: int) -> MemoryPlan:
        """The plan for prompts and outputs of so many tokens together."""
        runner = self._dry_runner(max_seq_len)
        cache = runner.cache
        weights = self._weights
        graphs = 0
        if self._graphs:
            buckets = default_node_buckets(self._max_nodes), default_kv_buckets(max_seq_len)
            graphs = math.prod(map(len, buckets))
        launches = _LAYER_LAUNCHES * self._config.num_layers + _STEP_LAUNCHES
        workspace = self._workspace(cache.capacity, runner.prefill_chunk) if self._on_gpu else 0
        return MemoryPlan(
            max_seq_len=max_seq_len,
            step_rows=self._max_nodes,
            parameters=weights.parameters,
            weight_bytes=weights.held,
            step_read_bytes=weights.read,
            tied_copy=weights.tied_copy,
            kv_cache_bytes=cache.nbytes,
            kv_bytes_per_token=cache.nbytes // cache.capacity,
            step_buffer_bytes=self._step_buffers(runner),
            workspace_bytes=workspace,
            graphs=graphs,
            # The graphs share one pool, which holds a workspace of its own.
            graph_pool_bytes=graphs * launches * _LAUNCH_BYTES + (workspace if graphs else 0),
        )

    def largest(self, available: int) -> int | None:
        """The longest context that fits into `available` bytes; None if not even the shortest does.

        A sliding window ends it as the memory does.
        """
        window = self._whole.sliding_window
        low, high = _MIN_CONTEXT, MAX_CONTEXT if window is None else min(MAX_CONTEXT, window)
        if self.at(low).total_bytes > available:
            return None
        while low < high:
            middle = (low + high + 1) // 2
            if self.at(middle).total_bytes <= available:
                low = middle
            else:
                high = middle - 1
        return low

    def check(self, max_seq_len: int, available: int | None, where: str) -> MemoryPlan:
        """The plan, if it fits.

        Args:
            max_seq_len: prompt and output together.
            available: bytes; None: nobody knows, and nothing is refused.
            where: the device, for the error.

        Raises:
            ConfigError: it does not fit; names the largest max_seq_len that does.
        """
        plan = self.at(max_seq_len)
        if available is None or plan.total_bytes <= available:
            return plan
        longest = self.largest(available)
        advice = (
            f"The largest max_seq_len that fits is {longest}."
            if longest is not None
            else "No max_seq_len fits: take a smaller dtype (int8, int4), more ranks "
            "(tensor_parallel) or a smaller model, or free memory."
        )
        raise ConfigError(
            f"max_seq_len={max_seq_len} does not fit in memory: weights {_gib(plan.weight_bytes)}, "
            f"key/value cache {_gib(plan.kv_cache_bytes)}, buffers and workspace "
            f"{_gib(plan.step_buffer_bytes + plan.workspace_bytes)}, graphs about "
            f"{_gib(plan.graph_pool_bytes)}, together {_gib(plan.total_bytes)} "
            f"({plan.total_bytes} bytes), and {_gib(available)} ({available} bytes) are available "
            f"on {where}. {advice}"
        )

    def _select(self, kernels: str, device: torch.device) -> Ops:
        config = self._config
        return select_ops(
            kernels,
            device,
            self._precision.dtype,
            config.head_dim,
            weight_format=self._precision.weight_format,
            query_group=config.num_heads // config.num_kv_heads,
            kv_heads=config.num_kv_heads,
        )

    def _dry_runner(self, max_seq_len: int) -> EagerRunner:
        """The runner that a model would get, on torch's meta device: sizes without memory."""
        nothing = cast(Any, None)  # no weight is touched before the first step
        model: CausalLM = CausalLM(
            config=self._config,
            weights=nothing,
            rope=RopeTable(self._config, max_seq_len, "meta"),
            ops=select_ops("torch") if self._ops is None else self._ops,
            device=torch.device("meta"),
            dtype=self._precision.dtype,
            num_parameters=0,
            weight_bytes=0,
            precision=self._precision.name,
        )
        return EagerRunner(
            model, max_seq_len=max_seq_len, max_nodes=self._max_nodes, top_k=self._top_k
        )

    def _step_buffers(self, runner: EagerRunner) -> int:
        """Activations, logits, rotary table, plan and output of a step."""
        activations = sum(
            getattr(runner.activations, field.name).nbytes for field in fields(runner.activations)
        )
        model = runner.model
        # Of a GPU's kernels: fp32.
        logit = 4 if self._on_gpu else model.logits_dtype.itemsize
        logits = self._max_nodes * self._config.vocab_size * logit
        staged = runner.staging.nbytes + runner.buffers.host_output.nbytes
        return int(activations + logits + model.rope.cos_sin.nbytes + staged)

    def _workspace(self, capacity: int, prefill_chunk: int) -> int:
        """fp32 sums of the splits: of the attention's largest step, of the widest product of a
        prefill's chunk."""
        config, split = self._config, _ATTENTION_SPLIT
        while -(-capacity // split) * config.num_kv_heads > _ATTENTION_PROGRAMS:
            split *= 2
        slots = -(-capacity // split) + 1
        states = slots * self._max_nodes * config.num_heads * (config.head_dim + 2)
        rows = max(self._max_nodes, prefill_chunk)
        qkv = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
        sums = _LINEAR_SPLITS * 64 * -(-rows // 64) * max(qkv, config.hidden_size)
        return 4 * (states + sums)


def _gib(count: int) -> str:
    return f"{count / 2**30:.2f} GiB"
