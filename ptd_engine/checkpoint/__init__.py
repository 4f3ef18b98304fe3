"""Model files: Hugging Face tensor names and config, whatever the container."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from ptd_engine.checkpoint.safetensors_files import SafetensorsCheckpoint
from ptd_engine.errors import CheckpointError

__all__ = ["Checkpoint", "SafetensorsCheckpoint", "open_checkpoint"]


class Checkpoint(Protocol):
    """What every container offers."""

    @property
    def config(self) -> dict[str, Any]:
        """The model's configuration under its Hugging Face names."""
        ...

    @property
    def generation_config(self) -> dict[str, Any]:
        """The generation defaults stored beside the weights; empty where there are none."""
        ...

    @property
    def dtype_name(self) -> str | None:
        """Name of the stored weights' dtype ("bfloat16"), or None where they are quantised."""
        ...

    def names(self) -> list[str]:
        """Names of the tensors (model.layers.0.self_attn.q_proj.weight)."""
        ...

    def tensor(self, name: str) -> Tensor:
        """Read one tensor to the CPU, in its stored dtype (fp32 where it is quantised)."""
        ...


def open_checkpoint(path: Path) -> Checkpoint:
    """Open a local directory with safetensors files, or a .gguf file.

    Raises:
        CheckpointError: nothing there, or not a model in a supported format.
    """
    if path.is_dir():
        return SafetensorsCheckpoint(path)
    if not path.exists():
        kind = "file" if path.suffix == ".gguf" else "directory"
        raise CheckpointError(f"{kind} not found: {path}. Check the path to the model.")
    if path.suffix.lower() == ".gguf":
        from ptd_engine.checkpoint.gguf_file import GGUFCheckpoint

        return GGUFCheckpoint(path)
    raise CheckpointError.for_field(
        "model path", str(path), "a directory with config.json and *.safetensors, or a .gguf file"
    )
