"""Writes a model as embed_llama reads it: two configurations and model.safetensors, in bfloat16.

    python examples/embed_llama/export_model.py demo build/demo-model

Takes what LLM.from_pretrained takes: "demo", a directory, a hub's name, a .gguf file, whose
quantised weights become bfloat16, as they do in `LLM.from_pretrained(..., dtype="bfloat16")`.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from ptd_engine.checkpoint import open_checkpoint
from ptd_engine.hub import resolve_model


def export(model: str, directory: Path) -> None:
    """Write the checkpoint of `model` to a directory, which is made if need be."""
    checkpoint = open_checkpoint(resolve_model(model))
    directory.mkdir(parents=True, exist_ok=True)
    tensors = {
        name: checkpoint.tensor(name).to(torch.bfloat16).contiguous() for name in checkpoint.names()
    }
    save_file(tensors, str(directory / "model.safetensors"), metadata={"format": "pt"})
    config = {**checkpoint.config, "torch_dtype": "bfloat16"}
    for name, content in (
        ("config.json", config),
        ("generation_config.json", checkpoint.generation_config),
    ):
        (directory / name).write_text(json.dumps(content, indent=2), encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help='"demo", a directory, a name of the hub or a .gguf file')
    parser.add_argument("directory", type=Path, help="where the files go")
    arguments = parser.parse_args()
    export(arguments.model, arguments.directory)
