"""Sessions of the core on a toy model: no forward pass, so that the core alone can be timed."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.common import collector_off
from ptd_engine import _core

MAX_PATH = 64
PROMPT_TOKENS = 32


@dataclass(frozen=True)
class ToyModel:
    """Next token = successors[token, branch[position]]: a function of the context, as a model is.

    Tokens have few successors of falling frequency, and some tokens are common, so that an output
    repeats itself in forking ways and the pool's tries grow as they do on text.

    Attributes:
        successors: int32 [V, B].
        branch: uint8 [positions].
    """

    successors: npt.NDArray[np.int32]
    branch: npt.NDArray[np.uint8]

    @classmethod
    def make(cls, positions: int, seed: int, vocabulary: int = 8192, branches: int = 8) -> ToyModel:
        """Draw the tables: Zipf over tokens, halving over branches."""
        random = np.random.default_rng(seed)
        common = 1.0 / np.arange(1, vocabulary + 1)
        likely = 0.5 ** np.arange(branches)
        return cls(
            random.choice(vocabulary, size=(vocabulary, branches), p=common / common.sum()).astype(
                np.int32
            ),
            random.choice(branches, size=positions, p=likely / likely.sum()).astype(np.uint8),
        )

    def answer(
        self, token_ids: npt.NDArray[np.int32], positions: npt.NDArray[np.int32]
    ) -> npt.NDArray[np.int32]:
        """The next token after each row."""
        return self.successors[token_ids, self.branch[positions]]

    def outputs(
        self,
        token_ids: npt.NDArray[np.int32],
        positions: npt.NDArray[np.int32],
        top_k: int,
    ) -> npt.NDArray[np.int32]:
        """[n, 1 + top_k]: the next token after each row, then its successors, likeliest first."""
        found = self.answer(token_ids, positions)[:, None]
        if top_k == 0:
            return found
        likely = self.successors[token_ids]
        columns = likely[:, np.arange(top_k) % likely.shape[1]]
        return np.ascontiguousarray(np.hstack([found, columns]))

    def plain(self, prompt: list[int], count: int) -> list[int]:
        """`count` tokens of plain decoding."""
        output, token = [], prompt[-1]
        for position in range(len(prompt) - 1, len(prompt) - 1 + count):
            token = int(self.successors[token, self.branch[position]])
            output.append(token)
        return output


@dataclass
class Window:
    """Consecutive timed steps of a session."""

    plan_ns: list[int] = field(default_factory=list)
    commit_ns: list[int] = field(default_factory=list)
    counters: dict[str, float] = field(default_factory=dict)

    def result(self) -> dict[str, float]:
        """Medians in microseconds and the mean tree."""
        both = [a + b for a, b in zip(self.plan_ns, self.commit_ns, strict=True)]
        steps = len(both)
        return {
            "steps": steps,
            "plan_us": statistics.median(self.plan_ns) / 1e3,
            "commit_us": statistics.median(self.commit_ns) / 1e3,
            "total_us": statistics.median(both) / 1e3,
            "total_p99_us": sorted(both)[int(0.99 * (steps - 1))] / 1e3,
            "mean_candidate_nodes": self.counters["candidate_nodes"] / steps,
            "mean_draft_nodes": self.counters["draft_nodes"] / steps,
            "decoding_efficiency": self.counters["tokens"] / steps,
        }


class Loop:
    """A session on the toy model, step by step."""

    def __init__(self, model: ToyModel, drafter: _core.Drafter, max_new_tokens: int) -> None:
        self.model = model
        self.prompt = list(range(1, 1 + PROMPT_TOKENS))
        self.session = _core.Session(
            self.prompt,
            drafter,
            max_seq_len=len(model.branch) - MAX_PATH,
            max_new_tokens=max_new_tokens,
            max_path=MAX_PATH,
            output_top_k=drafter.needs().top_k,
        )
        self.generated = 0
        self._top_k = drafter.needs().top_k
        if drafter.needs().prompt_outputs:
            ids = np.array(self.prompt[:-1], dtype=np.int32)
            places = np.arange(len(ids), dtype=np.int32)
            self.session.observe_prompt(0, model.outputs(ids, places, self._top_k))
        self._block = np.zeros(self.session.plan_bytes, dtype=np.uint8)
        shape = (1 + drafter.needs().max_nodes, 1 + self._top_k)
        self._output = np.zeros(shape, dtype=np.int32)
        self._views: dict[int, tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]] = {}

    def run_until(self, tokens: int) -> None:
        """Untimed steps until the output has this many tokens."""
        while self.generated < tokens:
            self._step()

    def measure(self, steps: int, between: Callable[[], object] | None = None) -> Window:
        """Timed steps; `between` runs where the forward pass would."""
        window = Window()
        before = self.session.stats
        with collector_off():
            for _ in range(steps):
                plan, commit = self._step(between)
                window.plan_ns.append(plan)
                window.commit_ns.append(commit)
        after: Any = self.session.stats
        names = ("candidate_nodes", "draft_nodes", "tokens")
        window.counters = {name: after[name] - before[name] for name in names}  # type: ignore[literal-required]
        return window

    def check(self) -> int | None:
        """Position of the first output token that plain decoding would not give, or None."""
        output = self.session.token_ids
        expected = self.model.plain(self.prompt, len(output))
        return next(
            (i for i, (a, b) in enumerate(zip(output, expected, strict=True)) if a != b), None
        )

    def _step(self, between: Callable[[], object] | None = None) -> tuple[int, int]:
        t0 = time.perf_counter_ns()
        rows = self.session.plan(self._block)
        t1 = time.perf_counter_ns()
        output = self._output[:rows]
        output[:] = self.model.outputs(*self._rows(rows), self._top_k)
        if between is not None:
            between()
        t2 = time.perf_counter_ns()
        tokens, _ = self.session.commit(output)
        t3 = time.perf_counter_ns()
        self.generated += len(tokens)
        return t1 - t0, t3 - t2

    def _rows(self, rows: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        if rows not in self._views:
            layout = _core.plan_layout(rows, MAX_PATH)
            token_ids, positions = (
                self._block[start : start + size].view(np.int32)
                for start, size in (layout["token_ids"], layout["positions"])
            )
            self._views[rows] = token_ids, positions
        return self._views[rows]
