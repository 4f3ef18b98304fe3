"""`ptd-engine plan --tensor-parallel` tells the bytes of a rank."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from ptd_engine.cli import create_app
from ptd_engine.tensor_parallel.settings import Settings, load_part


@pytest.mark.parametrize("family", ["llama3", "llama32"])  # its own output matrix; tied
def test_bytes_of_a_rank(model_dir: Callable[[str], Path], family: str) -> None:
    path = str(model_dir(family))
    arguments = ["plan", path, "--dtype", "float32", "--kernels", "torch", "--max-seq-len", "100"]
    runner, app = CliRunner(), create_app()
    one, two = (
        json.loads(runner.invoke(app, [*arguments, *more]).stdout.splitlines()[-1])
        for more in ([], ["--tensor-parallel", "2"])
    )
    settings = Settings(path, 2, "cpu", "float32", "torch", None, 100, 60.0)
    part = load_part(settings, 1, torch.device("cpu"))
    assert two["tensor_parallel"] == 2
    assert two["step_read_bytes"] == part.weight_bytes
    assert two["weight_bytes"] == part.weight_bytes + part.weights.embed.nbytes
    assert 2 * two["kv_cache_bytes"] == one["kv_cache_bytes"]
    assert two["parameters"] == one["parameters"]
