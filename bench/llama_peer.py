"""llama.cpp at the other end of a pipe: token ids in, token ids and times out.

Runs under an interpreter of its own that can import llama_cpp, so that llama.cpp is no dependency:
standard library, numpy and llama_cpp only. Started by bench/llama_client.py.

Protocol: JSON lines. First the peer says what it is; then to each
    {"prompt": [ids], "max_new_tokens": n}
it answers
    {"token_ids": [ids], "times": [seconds from the request until each token was known]}.
The prompt is decoded in batches, then one token at a time, greedily (ties to the lowest id).
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

import llama_cpp  # type: ignore[import-not-found]
import numpy as np


class Model:
    """A GGUF file in llama.cpp with the library's own settings, but for the sizes given."""

    def __init__(self, path: str, context: int, batch: int, threads: int) -> None:
        llama_cpp.llama_backend_init()
        model_params = llama_cpp.llama_model_default_params()
        model_params.n_gpu_layers = 0
        model = llama_cpp.llama_model_load_from_file(path.encode(), model_params)
        if not model:
            raise ValueError(f"llama.cpp cannot load {path}")
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = context
        params.n_batch = params.n_ubatch = batch
        params.n_threads = params.n_threads_batch = threads
        self._context: Any = llama_cpp.llama_init_from_model(model, params)
        if not self._context:
            raise ValueError(f"llama.cpp cannot make a context of {context} tokens")
        self._batch = batch
        self._vocab_size: int = llama_cpp.llama_vocab_n_tokens(
            llama_cpp.llama_model_get_vocab(model)
        )

    def clear(self) -> None:
        """Forget the sequence."""
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._context), True)

    def feed(self, tokens: Sequence[int]) -> int:
        """Append tokens to the sequence; returns the most likely next one."""
        for start in range(0, len(tokens), self._batch):
            part = tokens[start : start + self._batch]
            array = (ctypes.c_int32 * len(part))(*part)
            status = llama_cpp.llama_decode(
                self._context, llama_cpp.llama_batch_get_one(array, len(part))
            )
            if status != 0:
                raise RuntimeError(f"llama_decode failed with status {status}")
        logits = llama_cpp.llama_get_logits_ith(self._context, -1)
        return int(np.ctypeslib.as_array(logits, (self._vocab_size,)).argmax())

    def answer(
        self, prompt: Sequence[int], max_new_tokens: int, stop_ids: frozenset[int]
    ) -> dict[str, Any]:
        """The protocol's answer to a request; a stop id is the output's last token."""
        self.clear()
        start = time.perf_counter()
        tokens, times = [self.feed(prompt)], [time.perf_counter() - start]
        while len(tokens) < max_new_tokens and tokens[-1] not in stop_ids:
            tokens.append(self.feed(tokens[-1:]))
            times.append(time.perf_counter() - start)
        return {"token_ids": tokens, "times": times}


def main() -> None:
    """Serve requests until the input ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--context", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--stop", type=int, nargs="*", default=[])
    args = parser.parse_args()
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever the library prints must not reach the channel

    def send(message: dict[str, Any]) -> None:
        channel.write(json.dumps(message) + "\n")
        channel.flush()

    model = Model(args.model, args.context, args.batch, args.threads)
    system: bytes = llama_cpp.llama_print_system_info()
    send({"version": llama_cpp.__version__, "system": system.decode().strip()})
    for line in sys.stdin:
        request = json.loads(line)
        stops = frozenset(args.stop)
        send(model.answer(request["prompt"], request["max_new_tokens"], stops))


if __name__ == "__main__":
    main()
