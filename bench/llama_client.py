"""llama.cpp as a contestant: our end of the pipe to bench/llama_peer.py."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bench.contestants import Timed
from ptd_engine.checkpoint.gguf_header import read_gguf_header
from ptd_engine.errors import ConfigError, UnavailableError
from ptd_engine.runner.eager import PREFILL_CHUNK

_PEER = Path(__file__).with_name("llama_peer.py")
_CLOSE_S = 10


class LlamaCpp:
    """A child process with a GGUF file in llama.cpp; a context manager that ends it.

    Attributes:
        dtype: the types of the file's matrices, the most frequent one first.
        details: version and processor features of the library.
        drafts: False.
    """

    drafts = False

    def __init__(
        self, python: Path, gguf: Path, *, context: int, threads: int, stop_ids: Sequence[int]
    ) -> None:
        """Start it.

        Args:
            python: an interpreter that can import llama_cpp.
            gguf: the model file.
            context: tokens of the longest sequence.
            threads: for prompts and for single tokens.
            stop_ids: end an output.

        Raises:
            ConfigError: `python` is not there, or `gguf` is no model file.
            UnavailableError: the child failed; the message has its last words.
        """
        if not python.is_file():
            raise ConfigError.for_field(
                "--llama-python", str(python), "a Python interpreter that can import llama_cpp"
            )
        self.dtype = matrix_types(gguf)
        options = {"model": gguf, "context": context, "batch": PREFILL_CHUNK, "threads": threads}
        command = [str(python), str(_PEER)]
        command += [part for name, value in options.items() for part in (f"--{name}", str(value))]
        command += ["--stop", *map(str, stop_ids)]
        with ExitStack() as stack:
            self._log = stack.enter_context(tempfile.TemporaryFile())
            try:
                self._child = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=self._log,
                    text=True,
                    env=_own_environment(),
                )
            except OSError as error:
                raise ConfigError.for_field(
                    "--llama-python", str(python), "a program that can be run", str(error)
                ) from error
            stack.callback(self._end_child)
            self.details: dict[str, Any] = {"gguf": gguf.name, "threads": threads, **self._read()}
            self._open = stack.pop_all()

    def generate(self, prompt: list[int], max_new_tokens: int) -> Timed:
        """See `contestants.Contestant`; times are the child's, without the pipe."""
        assert self._child.stdin is not None
        request = {"prompt": prompt, "max_new_tokens": max_new_tokens}
        try:
            self._child.stdin.write(json.dumps(request) + "\n")
            self._child.stdin.flush()
        except BrokenPipeError as error:
            raise self._failure() from error
        answer = self._read()
        return Timed(answer["token_ids"], answer["times"][0], 1, answer["times"][-1])

    def close(self) -> None:
        """End the child."""
        self._open.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _end_child(self) -> None:
        assert self._child.stdin is not None and self._child.stdout is not None
        try:
            self._child.stdin.close()  # it ends when its input does
            self._child.wait(_CLOSE_S)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            self._child.kill()
            self._child.wait()
        self._child.stdout.close()

    def _read(self) -> dict[str, Any]:
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        if not line:
            raise self._failure()
        message: dict[str, Any] = json.loads(line)
        return message

    def _failure(self) -> UnavailableError:
        self._child.wait(_CLOSE_S)
        self._log.seek(0)
        lines = self._log.read().decode("utf-8", "replace").strip().splitlines()
        return UnavailableError(
            f"llama.cpp ended with status {self._child.returncode}: "
            f"{lines[-1] if lines else 'no message'}. Check --llama-python and --llama-gguf."
        )


def matrix_types(gguf: Path) -> str:
    """The types of a file's matrices ("Q4_1 + Q8_0"), the most frequent one first.

    Raises:
        CheckpointError: no GGUF file.
    """
    kinds = [t.ggml_type.name for t in read_gguf_header(gguf).tensors.values() if len(t.shape) > 1]
    return " + ".join(sorted(set(kinds), key=lambda kind: (-kinds.count(kind), kind)))


def _own_environment() -> dict[str, str]:
    """The environment without what suits torch: passive waiting makes llama.cpp's threads sleep
    between its operations.
    """
    return {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
