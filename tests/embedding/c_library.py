"""ptd.h for Python: its structures and functions by ctypes, as a binding would write them."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from ctypes import POINTER, byref, c_char_p, c_double, c_float, c_int32, c_int64, c_size_t, c_void_p
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

OK, ARGUMENT, ORDER, NOT_FINITE, MEMORY, BUSY, INTERNAL = range(7)
RUNNING, STOP, LENGTH, FAILED = range(4)
_IDS = POINTER(c_int32)


class _Struct(ctypes.Structure):
    """A structure of ptd.h: its size is set, everything else is 0 or given."""

    def __init__(self, **values: Any) -> None:
        super().__init__(struct_size=ctypes.sizeof(type(self)), **values)


class Config(_Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("vocab_size", c_int32),
        ("max_seq_len", c_int32),
        ("output_top_k", c_int32),
        ("max_path", c_int32),
        ("max_nodes", c_int32),
        ("reserved", c_int32),
        ("node_buckets", _IDS),
        ("n_node_buckets", c_size_t),
        ("eos_ids", _IDS),
        ("n_eos_ids", c_size_t),
    ]


class Needs(_Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("plan_bytes", c_size_t),
        ("max_nodes", c_int32),
        ("output_stride", c_int32),
        ("prompt_outputs", c_int32),
        ("step_cost", c_int32),
        ("top_p", c_float),
        ("reserved", c_int32),
    ]


class Request(_Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("max_new_tokens", c_int32),
        ("temperature", c_float),
        ("top_k", c_int32),
        ("top_p", c_float),
        ("min_p", c_float),
        ("reserved", c_int32),
        ("seed", ctypes.c_uint64),
        ("stop_ids", _IDS),
        ("n_stop_ids", c_size_t),
    ]


class Plan(_Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("bucket", c_int32),
        ("n_nodes", c_int32),
        ("n_verify", c_int32),
        ("prefix_len", c_int32),
        ("n_commit", c_int32),
        ("flags", c_int32),
        ("mask_words", c_int32),
        ("max_path", c_int32),
        ("token_ids", _IDS),
        ("positions", _IDS),
        ("commit_src", _IDS),
        ("temperature", POINTER(c_float)),
        ("uniform", POINTER(c_float)),
        ("sampling", POINTER(c_float)),
        ("mask", POINTER(ctypes.c_uint64)),
    ]


class Step(_Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("tokens", _IDS),
        ("n_tokens", c_size_t),
        ("n_accepted", c_int32),
        ("finish_reason", c_int32),
    ]


class Stats(_Struct):
    _fields_ = [
        ("struct_size", c_size_t),
        ("steps", c_int64),
        ("tokens", c_int64),
        ("hit_steps", c_int64),
        ("hit_tokens", c_int64),
        ("candidate_nodes", c_int64),
        ("draft_nodes", c_int64),
        ("accepted", c_int64),
        ("prompt_len", c_int32),
        ("kv_len", c_int32),
        ("finish_reason", c_int32),
        ("reserved", c_int32),
    ]


def ids(values: Sequence[int] | npt.NDArray[np.int32]) -> Any:
    """A C array of token ids."""
    return (c_int32 * len(values))(*[int(value) for value in values])


class CError(Exception):
    """A call that failed: its status and message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Library:
    """libptd.so with the functions' types."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.c = c = ctypes.CDLL(str(path))
        handle = c_void_p
        for name, result, arguments in (
            ("ptd_version", c_char_p, []),
            ("ptd_abi_version", c_int32, []),
            ("ptd_last_error", c_char_p, []),
            ("ptd_session_error", c_char_p, [handle]),
            ("ptd_drafter_names", c_char_p, []),
            (
                "ptd_drafter_options",
                c_int32,
                [c_char_p, c_size_t, c_char_p, c_size_t, POINTER(c_size_t)],
            ),
            (
                "ptd_session_create",
                c_int32,
                [c_char_p, c_size_t, c_char_p, c_size_t, POINTER(Config), POINTER(handle)],
            ),
            ("ptd_session_destroy", None, [handle]),
            ("ptd_session_needs", c_int32, [handle, POINTER(Needs)]),
            (
                "ptd_session_set_step_cost",
                c_int32,
                [handle, _IDS, POINTER(c_double), POINTER(c_double), c_size_t],
            ),
            ("ptd_session_begin", c_int32, [handle, _IDS, c_size_t, POINTER(Request)]),
            ("ptd_session_observe_prompt", c_int32, [handle, c_size_t, _IDS, c_size_t]),
            ("ptd_session_plan", c_int32, [handle, c_void_p, c_size_t, POINTER(Plan)]),
            ("ptd_session_commit", c_int32, [handle, _IDS, c_size_t, POINTER(Step)]),
            ("ptd_session_output", c_int32, [handle, POINTER(_IDS), POINTER(c_size_t)]),
            ("ptd_session_stats", c_int32, [handle, POINTER(Stats)]),
        ):
            function = getattr(c, name)
            function.restype = result
            function.argtypes = arguments

    def check(self, status: int) -> None:
        """Raise the error of a call."""
        if status != OK:
            raise CError(status, self.c.ptd_last_error().decode("ascii"))

    def names(self) -> list[str]:
        return str(self.c.ptd_drafter_names().decode()).split("\n")

    def options(self, drafter: str) -> str:
        """A drafter's options with their defaults, as JSON."""
        name = drafter.encode()
        needed = c_size_t()
        self.c.ptd_drafter_options(name, len(name), None, 0, byref(needed))
        buffer = ctypes.create_string_buffer(max(needed.value, 1))
        self.check(self.c.ptd_drafter_options(name, len(name), buffer, needed.value, None))
        return buffer.value.decode()


class CSession:
    """A handle, with the calls of `_core.Session`."""

    def __init__(
        self,
        library: Library,
        drafter: str | bytes,
        options: str | bytes = "",
        config: Config | None = None,
        **limits: Any,
    ) -> None:
        self.library = library
        self.handle = c_void_p()
        name = drafter.encode() if isinstance(drafter, str) else drafter
        text = options.encode() if isinstance(options, str) else options
        if config is None:
            config = Config(**{"vocab_size": 64, "max_seq_len": 512, **limits})
        library.check(
            library.c.ptd_session_create(
                name, len(name), text, len(text), byref(config), byref(self.handle)
            )
        )
        self.needs = Needs()
        library.check(library.c.ptd_session_needs(self.handle, byref(self.needs)))

    def close(self) -> None:
        self.library.c.ptd_session_destroy(self.handle)
        self.handle = c_void_p()

    def begin(self, prompt: Sequence[int], *, stop_ids: Sequence[int] = (), **request: Any) -> None:
        asked = Request(stop_ids=ids(stop_ids), n_stop_ids=len(stop_ids), **request)
        self.library.check(
            self.library.c.ptd_session_begin(self.handle, ids(prompt), len(prompt), byref(asked))
        )

    def observe_prompt(self, first: int, outputs: npt.NDArray[np.int32]) -> None:
        flat = ids(outputs.ravel())
        self.library.check(
            self.library.c.ptd_session_observe_prompt(self.handle, first, flat, len(flat))
        )

    def set_step_cost(self, rows: Sequence[int], seconds: Sequence[float]) -> None:
        n = len(rows)
        zeros = (c_double * n)()
        self.library.check(
            self.library.c.ptd_session_set_step_cost(
                self.handle, ids(rows), (c_double * n)(*seconds), zeros, n
            )
        )

    def plan(self, block: npt.NDArray[np.uint8]) -> Plan:
        plan = Plan()
        self.library.check(
            self.library.c.ptd_session_plan(
                self.handle, block.ctypes.data_as(c_void_p), block.nbytes, byref(plan)
            )
        )
        return plan

    def commit(self, output: npt.NDArray[np.int32] | Sequence[int]) -> tuple[list[int], int]:
        step = Step()
        flat = ids(np.asarray(output).ravel())
        self.library.check(
            self.library.c.ptd_session_commit(self.handle, flat, len(flat), byref(step))
        )
        return [step.tokens[i] for i in range(step.n_tokens)], step.n_accepted

    @property
    def output(self) -> list[int]:
        tokens, n = _IDS(), c_size_t()
        self.library.check(self.library.c.ptd_session_output(self.handle, byref(tokens), byref(n)))
        return [tokens[i] for i in range(n.value)]

    @property
    def stats(self) -> Mapping[str, int]:
        stats = Stats()
        self.library.check(self.library.c.ptd_session_stats(self.handle, byref(stats)))
        return {name: getattr(stats, name) for name, _ in Stats._fields_}

    @property
    def error(self) -> str:
        return str(self.library.c.ptd_session_error(self.handle).decode("ascii"))
