"""Processes that end badly: killed while they generate, or without memory for the model."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from cli.conftest import save_model
from safetensors.torch import load_file, save_file

from ptd_engine.testing import tiny

STREAM = """
import sys
from ptd_engine import LLM
from ptd_engine.config import SamplingParams

llm = LLM.from_pretrained(sys.argv[1], dtype="float32", drafter="ptd")
for token in llm.engine.generate([3, 4, 5], SamplingParams(max_new_tokens=100, ignore_eos=True)):
    print(*token.token_ids, flush=True)
    if sys.argv[2] == "wait":
        sys.stdin.readline()
print("end", flush=True)
"""


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("models") / "tiny", None)


def test_killed_while_it_generates_and_started_again(model: Path, tmp_path: Path) -> None:
    before = files_of(model)
    command = [sys.executable, "-c", STREAM, str(model)]
    environment = {"TMPDIR": str(tmp_path), "HOME": str(tmp_path), "OMP_WAIT_POLICY": "passive"}
    with subprocess.Popen(
        [*command, "wait"],
        env=environment,
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None and process.stdin is not None
        first = process.stdout.readline()
        process.stdin.write("\n")
        process.stdin.flush()
        second = process.stdout.readline()
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    assert files_of(model) == before  # nothing of a model is ever written to
    assert list(tmp_path.iterdir()) == []  # nor anything beside it: nothing is to be cleaned up
    again = subprocess.run(
        [*command, "through"],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    assert again[-1] == "end"
    assert again[:2] == [first.strip(), second.strip()]


LOAD = """
import resource
import sys
import torch
from ptd_engine.errors import PTDError
from ptd_engine.model import load_model

load_model(sys.argv[1], kernels=sys.argv[3])  # what a first model needs besides its weights
pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * 4096 + int(sys.argv[4])
resource.setrlimit(resource.RLIMIT_AS, (limit, -1))  # the soft one: it can be raised again
try:
    load_model(sys.argv[2], kernels=sys.argv[3])
except PTDError as error:
    print(type(error).__name__, error)
resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
load_model(sys.argv[1], kernels=sys.argv[3])
print("and the process goes on")
"""


# Of a file of 48 MiB: no room to map it; room for that, and none for the weights.
@pytest.mark.parametrize("room", [8 << 20, 60 << 20])
@pytest.mark.parametrize("kernels", ["torch", "cpu"])
def test_a_model_that_does_not_fit_into_memory(
    model: Path, tmp_path: Path, kernels: str, room: int
) -> None:
    rows = 196_608
    large = tiny.save(tiny.build("llama3"), tmp_path / "large")
    weights = load_file(large / "model.safetensors")
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        weights[name] = torch.zeros(rows, 64, dtype=torch.float32)
    save_file(weights, large / "model.safetensors")
    config = (large / "config.json").read_text()
    assert '"vocab_size": 97' in config
    (large / "config.json").write_text(config.replace('"vocab_size": 97', f'"vocab_size": {rows}'))
    done = subprocess.run(
        [sys.executable, "-c", LOAD, str(model), str(large), kernels, str(room)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    first, last = done.stdout.splitlines()
    assert first.startswith("ConfigError") and "memory" in first and str(large) in first
    assert last == "and the process goes on"
