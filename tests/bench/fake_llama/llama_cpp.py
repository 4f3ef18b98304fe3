"""Stands in for the package of this name in the peer's process: it recites prepared sequences.

RECITE holds them as JSON, a prompt and its output together. What the real library prints comes to
standard output as well, where it must not meet the protocol.
"""

from __future__ import annotations

import ctypes
import json
import os
from types import SimpleNamespace
from typing import Any

__version__ = "0.0.fake"
_VOCABULARY = 300
_KNOWN: list[list[int]] = json.loads(os.environ["RECITE"])

llama_model_default_params = SimpleNamespace
llama_context_default_params = SimpleNamespace


def llama_backend_init() -> None:
    os.write(1, b"noise of the library\n")


def llama_model_load_from_file(path: bytes, params: Any) -> str | None:
    return path.decode() if os.path.exists(path) else None


def llama_init_from_model(model: str, params: Any) -> Any:
    return SimpleNamespace(tokens=[], limit=params.n_ctx, batch=params.n_batch)


def llama_model_get_vocab(model: str) -> None:
    return None


def llama_vocab_n_tokens(vocab: None) -> int:
    return _VOCABULARY


def llama_print_system_info() -> bytes:
    return b"FAKE = 1"


def llama_get_memory(context: Any) -> Any:
    return context


def llama_memory_clear(memory: Any, data: bool) -> None:
    memory.tokens.clear()


def llama_batch_get_one(array: Any, count: int) -> list[int]:
    return list(array[:count])


def llama_decode(context: Any, batch: list[int]) -> int:
    if len(batch) > context.batch or len(context.tokens) + len(batch) > context.limit:
        return 1
    context.tokens += batch
    return 0


def llama_get_logits_ith(context: Any, row: int) -> Any:
    read = len(context.tokens)
    following = {s[read] for s in _KNOWN if s[:read] == context.tokens and len(s) > read}
    logits = (ctypes.c_float * _VOCABULARY)()
    logits[min(following) if following else 0] = 1.0
    return ctypes.cast(logits, ctypes.POINTER(ctypes.c_float))
