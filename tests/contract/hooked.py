"""One engine over many requests: what happens to a request, and what is compared afterwards."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from reference.toy_models import hashed

from ptd_engine import PTDConfig, SamplingParams
from ptd_engine.drafters import make_drafter
from ptd_engine.testing.toy import ToyRunner

from .conftest import WatchedEngine, check_request, engine_of

A, B = [5, 9, 11, 3, 9, 11, 3, 9], [20, 21, 22]
PARAMS = SamplingParams(max_new_tokens=60)
MODEL = hashed(24, 5, 2)
POINTS = [("prefill", 0), ("launch", 1), ("wait", 1), ("launch", 4), ("wait", 9)]

Act = Callable[[], None]
Result = tuple[list[int], str | None, dict[str, Any]]


class HookedRunner(ToyRunner):
    """Calls `act` at a point of the request: "prefill", "launch" or "wait", at a given step."""

    act: Act | None = None
    at: tuple[str, int] = ("", 0)

    def _reach(self, point: str) -> None:
        if self.act is not None and (point, self.steps) == self.at:
            act, self.act = self.act, None
            act()

    def prefill(self, token_ids: Any, **where: Any) -> int:
        rows = super().prefill(token_ids, **where)
        self.steps = 0
        self._reach("prefill")
        return rows

    def launch(self, n_bucket: int) -> None:
        super().launch(n_bucket)
        self._reach("launch")

    def wait(self) -> Any:
        self._reach("wait")
        return super().wait()


def fresh() -> WatchedEngine:
    """A PTD engine over a HookedRunner."""
    drafter = make_drafter(PTDConfig(width=3, depth=4), device_type="cpu")
    return engine_of(MODEL, drafter, vocab_size=24, runner=HookedRunner)


def hook(engine: WatchedEngine, at: tuple[str, int], act: Act) -> HookedRunner:
    """Have `act` called at that point of the next request."""
    runner = engine.runner
    assert isinstance(runner, HookedRunner)
    runner.at, runner.act = at, act
    return runner


def result(engine: WatchedEngine, prompt: list[int]) -> Result:
    """Ids, finish reason and counters of a whole request."""
    generation = engine.generate(prompt, PARAMS)
    for _ in generation:
        check_request(generation, len(prompt))
    counters = {k: v for k, v in asdict(generation.stats).items() if not k.endswith("_s")}
    return generation.token_ids, generation.finish_reason, counters


def elsewhere(act: Act) -> None:
    """Run `act` in another thread, to its end."""
    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    thread.join(timeout=30)
    assert not thread.is_alive()
