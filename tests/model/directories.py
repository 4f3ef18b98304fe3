"""Model directories as users have them: written, edited, loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from ptd_engine.model import load_model
from ptd_engine.testing.compare import StepRunner

TEXT = [5, 9, 3, 44, 90, 12, 7]


def edit_config(directory: Path, *removed: str, **changes: Any) -> None:
    path = directory / "config.json"
    config = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({k: v for k, v in config.items() if k not in removed}))


def edit_tensors(directory: Path, *removed: str, **changes: torch.Tensor) -> None:
    path = directory / "model.safetensors"
    tensors = {**load_file(path), **changes}
    save_file({k: v for k, v in tensors.items() if k not in removed}, path)


def logits_of(directory: Path, **options: Any) -> torch.Tensor:
    return StepRunner(load_model(directory, **options)).prefill(TEXT)
