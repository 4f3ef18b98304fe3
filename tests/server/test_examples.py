"""The examples of the README and of docs/serving.md do what they say."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ptd_engine import LLM

from .conftest import Running, serving

ROOT = Path(__file__).parents[2]
ADDRESS = "http://127.0.0.1:8000"


def examples(language: str) -> list[str]:
    """Blocks of a language that talk to a server."""
    texts = [(ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "docs/serving.md")]
    blocks = re.findall(rf"^```{language}\n(.*?)^```", "\n".join(texts), re.M | re.S)
    return [block for block in blocks if ADDRESS in block and "ptd-engine serve" not in block]


@pytest.fixture(scope="module")
def demo_named(tiny_llm: LLM) -> Iterator[Running]:
    """A tiny model under the examples' name."""
    with serving(tiny_llm.with_drafter("ptd"), model_name="demo") as running:
        yield running


@pytest.mark.parametrize("block", examples("sh"))
def test_curl(demo_named: Running, block: str) -> None:
    if shutil.which("curl") is None:
        pytest.skip("no curl here")
    script = "set -e\n" + block.replace(ADDRESS, demo_named.url)
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout and '"error"' not in done.stdout
    for line in done.stdout.splitlines():
        if line.startswith("data: {"):
            json.loads(line[6:])


@pytest.mark.parametrize("block", examples("python"))
def test_python(demo_named: Running, block: str) -> None:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(block.replace(ADDRESS, demo_named.url), {})
    assert printed.getvalue().strip()


def test_there_are_examples() -> None:
    assert len(examples("sh")) >= 2 and len(examples("python")) >= 2
