from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import ptd_engine

from .conftest import Run

COMMANDS = ("generate", "verify", "chat", "serve", "doctor", "plan", "demo")
LAZY_HELP = """
import sys
from ptd_engine.cli import main
sys.argv = ["ptd-engine", *{args!r}]
try:
    main()
except SystemExit as stop:
    assert not stop.code, stop.code
heavy = {{"torch", "transformers", "tokenizers", "numpy", "rich"}} & set(sys.modules)
assert not heavy, heavy
"""
INTERRUPTED_IMPORT = """
import sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            raise KeyboardInterrupt
sys.meta_path.insert(0, Finder())
from ptd_engine.cli import main
sys.argv = ["ptd-engine", "plan", "/no/model"]
main()
"""


def test_help_loads_nothing_heavy() -> None:
    for args in (["--help"], ["generate", "--help"], ["--version"]):
        done = subprocess.run(
            [sys.executable, "-c", LAZY_HELP.format(args=args)], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr


def test_help_lists_every_command(run: Run) -> None:
    listed = run("--help").stdout
    assert all(f"  {name} " in listed for name in COMMANDS)
    for name in COMMANDS:
        assert run(name, "--help").exit_code == 0
    assert run("--version").stdout == f"ptd-engine {ptd_engine.__version__}\n"


def test_usage_errors(run: Run) -> None:
    assert run("nope").exit_code == 2
    assert run("generate").exit_code == 2
    assert run("generate", "m", "--prompt", "x", "--seed", "one").exit_code == 2


@pytest.mark.parametrize("args", [("--help",), ("--version",), ("doctor",)])
def test_output_that_cannot_be_written_is_one_line(args: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "ptd_engine.cli", *args]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert done.stderr == "error: the output cannot be written: No space left on device.\n"
    shell = ["sh", "-c", '"$@" >&-', "sh", *command]
    closed = subprocess.run(shell, stderr=subprocess.PIPE, text=True)
    assert closed.returncode == 1
    assert closed.stderr.startswith("error: standard output is closed")
    assert closed.stderr.count("\n") == 1


@pytest.mark.parametrize("module", ["typer", "ptd_engine.cli.app", "torch"])
def test_ctrl_c_during_imports_ends_quietly(module: str) -> None:
    code = INTERRUPTED_IMPORT.format(module=module)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "\ninterrupted\n")


def read_until(pipe: int, ending: bytes, timeout: float) -> bytes:
    """What arrives on a pipe up to `ending`, or up to the timeout."""
    seen, deadline = b"", time.monotonic() + timeout
    while not seen.endswith(ending):
        ready, _, _ = select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))
        if not ready or not (byte := os.read(pipe, 1)):
            break
        seen += byte
    return seen


def test_ctrl_c_at_the_prompt_explains_and_goes_on(chat_model: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "ptd_engine.cli", "chat", chat_model],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0,
        # A shell starts background jobs with Ctrl-C ignored, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        env={**os.environ, "PYTHONUNBUFFERED": "1"}, cwd=Path(ptd_engine.__file__).parents[1],
    )  # fmt: skip
    assert process.stdout is not None
    pipe = process.stdout.fileno()
    assert read_until(pipe, b"> ", 120).endswith(b"> ")  # only now is the program listening
    process.send_signal(signal.SIGINT)
    assert read_until(pipe, b"> ", 20) == b"\n(Ctrl-D or /exit leaves)\n> "
    _, errors = process.communicate(b"/exit\n", timeout=60)
    assert process.returncode == 0, errors
