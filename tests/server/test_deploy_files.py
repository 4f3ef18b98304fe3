"""What deploy/ holds fits the package: the unit is valid, options and copied files exist."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
from cli.conftest import Run

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"


def test_the_unit_is_valid(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze here")
    text = (DEPLOY / "ptd-engine.service").read_text(encoding="utf-8")
    # The program has to exist, and so has what the environment is read from.
    text = text.replace("/opt/ptd-engine/bin/ptd-engine", shutil.which("true") or "/bin/true")
    unit = tmp_path / "ptd-engine.service"
    unit.write_text(text, encoding="utf-8")
    command = ["systemd-analyze", "verify", "--man=no", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0 and "ptd-engine.service" not in done.stderr, done.stderr


def test_the_unit_waits_as_long_as_the_server() -> None:
    text = (DEPLOY / "ptd-engine.service").read_text(encoding="utf-8")
    server = re.search(r"--shutdown-timeout (\d+)", text)
    system = re.search(r"^TimeoutStopSec=(\d+)", text, re.M)
    assert server is not None and system is not None
    assert int(system[1]) >= int(server[1]) + 10


def test_options_that_are_named_exist(run: Run) -> None:
    texts = [path.read_text(encoding="utf-8") for path in DEPLOY.iterdir()]
    texts.append((ROOT / "docs" / "deployment.md").read_text(encoding="utf-8"))
    lines = "\n".join(texts).splitlines()
    named = {
        option
        for line in lines
        if "ptd-engine serve" in line or "ptd_engine serve" in line
        for option in re.findall(r"(?<!\S)`?(--[a-z][a-z-]+)", line.partition(" serve")[2])
    }
    assert "--shutdown-timeout" in named
    known = set(re.findall(r"--[a-z-]+", run("serve", "--help", env={"COLUMNS": "200"}).stdout))
    assert named <= known


def test_what_the_container_copies_is_there() -> None:
    text = (DEPLOY / "Containerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    copied = [
        name
        for words in re.findall(r"^COPY (?!--from)(.*)$", text, re.M)
        for name in words.split()[:-1]
    ]
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert len(copied) >= 9
    for name in copied:
        assert (ROOT / name).exists()
        assert f"!{name}" in ignored
    # Everything that building the package reads.
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "csrc"):
        assert name in copied
    assert {*project["license-files"]} <= {*copied}
