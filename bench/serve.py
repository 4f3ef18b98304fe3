"""Load on a server: many clients on loopback against the engine alone, and nothing lost.

`ptd-engine serve` runs in a process of its own; clients ask for chats, whole and streamed, plain
and drafted, greedy and sampled; some leave in the middle, some send what is not valid. Every answer
is compared with that of the engine alone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.common import add_model_arguments, model_settings, positive
from bench.report import Document, TitledTable, make_table
from bench.serve_load import Case, Tally, load
from ptd_engine import LLM, SamplingParams
from ptd_engine.errors import EngineError

QUESTIONS = (
    "List the numbers from one to twenty, one a line.",
    "Write a Python function that adds two numbers, and three tests for it.",
    "Name ten animals and where they live.",
    "What is a hash table?",
    "Write a haiku about trees.",
    "Give me a recipe for bread, step by step.",
)
KINDS = ("answered", "refused", "invalid", "left", "wrong", "lost")
MAX_GROWTH_MIB = 64.0  # of the server's memory over the run: flat, but for allocators' habits
_MIB = 2**20
_START_S = 300.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this benchmark."""
    add_model_arguments(parser)
    parser.add_argument("--drafter", default="hybrid", metavar="NAME[:OPTION=VALUE,...]")
    parser.add_argument("--clients", type=positive, default=32, metavar="N")
    parser.add_argument("--seconds", type=positive, default=600, metavar="S", help="of load")
    parser.add_argument("--max-queue", type=positive, default=16, metavar="N", help="of the server")
    parser.add_argument("--max-tokens", type=positive, default=32, metavar="N", help="of an answer")
    parser.add_argument("--max-seq-len", type=positive, metavar="N")
    parser.add_argument("--seed", type=int, default=0, help="of the clients' choices")


def run(args: argparse.Namespace) -> Document:
    """Measure.

    Raises:
        EngineError: the server did not start.
    """
    llm = LLM.from_pretrained(
        args.model,
        dtype=args.dtype,
        device=args.device,
        kernels=args.kernels,
        num_threads=args.threads,
        max_seq_len=args.max_seq_len,
        drafter=args.drafter,
    )
    cases, offline = _alone(llm, args.max_tokens)
    settings = {
        **model_settings(args, llm.model),
        **{name: getattr(args, name) for name in ("drafter", "clients", "seconds", "max_queue")},
        **{name: getattr(args, name) for name in ("max_tokens", "seed")},
    }
    device = llm.model.device
    del llm
    with _server(args) as (port, process):
        memory = Memory(process.pid)
        begin = time.perf_counter()
        tally = asyncio.run(
            load(
                port,
                cases,
                clients=args.clients,
                seconds=args.seconds,
                timeout_s=max(120.0, args.seconds),
                seed=args.seed,
            )
        )
        elapsed = time.perf_counter() - begin
        growth = memory.stop()
    results = {**_results(tally, elapsed, offline, growth), "exit_status": process.returncode}
    if process.returncode != 0:
        tally.faults.append(f"the server ended with status {process.returncode} at SIGTERM")
    return Document(
        "serve",
        correct=not tally.faults and growth["growth_mib"] <= MAX_GROWTH_MIB,
        settings=settings,
        results=results,
        tables=[_table(results)],
        notes=[*tally.faults[:10]],
        device=device,
    )


def _alone(llm: LLM, max_tokens: int) -> tuple[list[Case], float]:
    """The requests with their texts, and tokens a second of the engine alone."""
    cases: list[Case] = []
    tokens, begin = 0, time.perf_counter()
    for number, question in enumerate(QUESTIONS):
        messages = [{"role": "user", "content": question}]
        sampled = {} if number % 3 else {"temperature": 0.9, "seed": number}
        params = SamplingParams(max_new_tokens=max_tokens, **sampled)  # type: ignore[arg-type]
        output = llm.chat(messages, params)
        tokens += output.usage.completion_tokens
        body = {"messages": messages, "max_tokens": max_tokens, **sampled}
        cases += [
            Case({**body, "speculative": speculative}, output.text)
            for speculative in ("auto", "auto", "auto", "none")
        ]
    return cases, tokens / (time.perf_counter() - begin)


@contextmanager
def _server(args: argparse.Namespace) -> Iterator[tuple[int, subprocess.Popen[str]]]:
    command = [sys.executable, "-m", "ptd_engine.cli", "serve", args.model, "--port", "0"]
    command += ["--dtype", args.dtype, "--device", args.device, "--kernels", args.kernels]
    command += ["--drafter", args.drafter, "--max-queue", str(args.max_queue)]
    command += ["--served-model-name", "model"]
    for option, value in (("--num-threads", args.threads), ("--max-seq-len", args.max_seq_len)):
        command += [] if value is None else [option, str(value)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    log = process.stderr
    assert log is not None
    try:
        yield _port(log), process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _port(log: Any) -> int:
    """Read the log up to where the server runs, and go on reading it so that it never blocks."""
    deadline, lines = time.perf_counter() + _START_S, []
    while time.perf_counter() < deadline and (line := log.readline()):
        lines.append(line)
        entry = json.loads(line) if line.startswith("{") else {}
        if entry.get("message") == "serving":
            threading.Thread(target=lambda: all(log), daemon=True).start()
            return int(entry["url"].rsplit(":", 1)[1])
    raise EngineError(f"The server did not start: {''.join(lines)[-2000:]}")


class Memory:
    """Looks at a process's resident memory twice a second, in a thread."""

    def __init__(self, pid: int) -> None:
        self._status = Path(f"/proc/{pid}/status")
        self._seen: list[float] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> dict[str, float]:
        """The peak of the first quarter of the time, that of the last, and their difference, MiB.

        The first quarter is a warm-up: buffers are touched, every size of step is recorded.
        """
        self._ended.set()
        self._thread.join()
        quarter = max(1, len(self._seen) // 4)
        first, last = max(self._seen[:quarter]), max(self._seen[-quarter:])
        return {"first_mib": first, "last_mib": last, "growth_mib": last - first}

    def _watch(self) -> None:
        while True:
            for line in self._status.read_text().splitlines():
                if line.startswith("VmRSS:"):
                    self._seen.append(int(line.split()[1]) * 1024 / _MIB)
            if self._ended.wait(0.5):
                return


def _results(
    tally: Tally, elapsed: float, offline: float, memory: dict[str, float]
) -> dict[str, Any]:
    rate = tally.tokens / elapsed
    return {
        "outcomes": dict(tally.outcomes),
        "requests": sum(tally.outcomes.values()),
        "elapsed_s": elapsed,
        "tokens": tally.tokens,
        "tokens_per_second": rate,
        "alone_tokens_per_second": offline,
        "share_of_alone": rate / offline,
        "time_to_first_token_s": _spread(tally.first_s),
        "latency_s": _spread(tally.total_s),
        "health_s": _spread(tally.health_s),
        "memory": memory,
    }


def _spread(values: Sequence[float]) -> dict[str, float] | None:
    """Median, 95th and 99th percentile, largest; None without values."""
    if len(values) < 2:
        return None
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    return {"p50": cuts[49], "p95": cuts[94], "p99": cuts[98], "max": max(values)}


def _table(results: dict[str, Any]) -> TitledTable:
    outcomes, memory = results["outcomes"], results["memory"]
    rows = [(name, str(outcomes.get(name, 0))) for name in KINDS]
    rows += [
        ("tokens/s, answered requests", f"{results['tokens_per_second']:.1f}"),
        ("tokens/s, engine alone", f"{results['alone_tokens_per_second']:.1f}"),
    ]
    for label, key, unit in (
        ("first part of a stream, s", "time_to_first_token_s", 1.0),
        ("whole answer, s", "latency_s", 1.0),
        ("/health, ms", "health_s", 1000.0),
    ):
        spread = results[key]
        if spread is not None:
            shown = " / ".join(f"{spread[name] * unit:.2f}" for name in ("p50", "p95", "max"))
            rows.append((f"{label}: median / 95 % / largest", shown))
    rows.append(("server's memory, MiB", f"{memory['first_mib']:.0f} to {memory['last_mib']:.0f}"))
    return make_table(f"{results['requests']} requests", ("", ""), rows)
