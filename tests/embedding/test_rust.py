"""The example in Rust: ptd.h as a Rust program declares it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import ROOT
from reference.toy_models import lookup_last

VOCAB = 23


def test_rust_decodes(library_path: Path, tmp_path: Path) -> None:
    rustc = shutil.which("rustc")
    if rustc is None:
        pytest.skip("there is no rustc on PATH to compile the example in Rust with")
    program = tmp_path / "embed_rust"
    command = [rustc, "--edition=2021", "-D", "warnings", "-o", str(program)]
    command += ["-L", f"native={library_path.parent}", "-l", "dylib=ptd"]
    built = subprocess.run(
        [*command, str(ROOT / "examples/embed_rust/main.rs")],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    done = subprocess.run(
        [program],
        env={**os.environ, "LD_LIBRARY_PATH": str(library_path.parent)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    next_token = lookup_last([(7 * token + 3) % VOCAB for token in range(VOCAB)])
    text = [1, 2, 3]
    while len(text) < 63:
        text.append(next_token(text))
    ids, counts = done.stdout.splitlines()
    assert [int(word) for word in ids.split()] == text[3:]
    tokens, steps = (int(word) for word in counts.split() if word.isdigit())
    assert tokens == 60 and steps < 60
    assert "factor=-1 is not valid: allowed is a number from 0.01 to 64." in done.stderr
