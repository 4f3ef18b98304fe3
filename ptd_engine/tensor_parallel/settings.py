"""What rank 0 tells the others to load."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from ptd_engine.checkpoint import open_checkpoint
from ptd_engine.errors import ConfigError
from ptd_engine.model import CausalLM, ModelConfig, load_model
from ptd_engine.model.precision import resolve_precision
from ptd_engine.tensor_parallel.partition import Partition, check_ranks, head_rows
from ptd_engine.tensor_parallel.shards import ShardedCheckpoint


@dataclass(frozen=True)
class Settings:
    """A model as every rank loads its part of it.

    Attributes:
        path: a model directory or a .gguf file.
        ranks: how many parts.
        device: "cpu" or "cuda"; there every rank takes the GPU of its number on its machine.
        timeout_s: how long a rank may be late.
        dtype, kernels, num_threads, max_seq_len: see `load_model`.
    """

    path: str
    ranks: int
    device: str
    dtype: str
    kernels: str
    num_threads: int | None
    max_seq_len: int
    timeout_s: float

    def to_json(self) -> str:
        """As the other ranks read it."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Settings:
        """What `to_json` wrote."""
        return cls(**json.loads(text))


def check(settings: Settings) -> None:
    """Refuse what cannot be loaded, before any rank is started.

    Raises:
        ConfigError: sizes that do not divide, a quantised dtype.
        CheckpointError: no model there.
    """
    checkpoint = open_checkpoint(Path(settings.path))
    check_ranks(ModelConfig.from_hf(checkpoint.config), settings.ranks)
    device = torch.device(settings.device)
    precision = resolve_precision(settings.dtype, checkpoint.dtype_name, device, settings.kernels)
    if precision.weight_format != "float":
        raise ConfigError.for_field(
            "dtype",
            settings.dtype,
            "float32, bfloat16 or float16 with tensor_parallel",
            "Parts of a matrix would be quantised with other scales than the whole.",
        )


def load_part(settings: Settings, rank: int, device: torch.device) -> CausalLM:
    """Load one rank's part."""
    whole = open_checkpoint(Path(settings.path))
    config = ModelConfig.from_hf(whole.config)
    return load_model(
        ShardedCheckpoint(whole, Partition(config, rank, settings.ranks)),
        dtype=settings.dtype,
        device=device,
        kernels=settings.kernels,
        max_seq_len=settings.max_seq_len,
        num_threads=settings.num_threads,
        head_rows=head_rows(config.vocab_size, rank, settings.ranks),
    )
