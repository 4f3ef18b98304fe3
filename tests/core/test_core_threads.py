"""Other threads run while the C++ core works: it holds no lock of the interpreter."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from session_driver import ToyRunner

from ptd_engine._core import PTDDrafter, Session, SuffixDrafter

LONG = [token % 5000 for token in range(0, 7 * 200_000, 7)]
PROMPT = [1, 2, 3]
ATTEMPTS = 2000  # a call is short, and the other thread needs a core


class Counter:
    """Another thread, which counts whenever it is let."""

    def __init__(self) -> None:
        self.count = 0
        self._ended = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def beside(self, call: Callable[..., Any], *args: Any) -> tuple[Any, bool]:
        """What the call gives, and whether the other thread got on meanwhile."""
        before = self.count
        found = call(*args)
        return found, self.count > before

    def end(self) -> None:
        self._ended = True
        self._thread.join()

    def _run(self) -> None:
        while not self._ended:
            self.count += 1
            time.sleep(0)


@pytest.fixture
def counter() -> Iterator[Counter]:
    """Python never takes the lock from a thread here: only one that gives it up lets others run."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000.0)
    counting = Counter()
    try:
        yield counting
    finally:
        counting.end()
        sys.setswitchinterval(interval)


def test_python_code_keeps_the_other_thread_waiting(counter: Counter) -> None:
    _, moved = counter.beside(lambda: sum(each % 7 for each in range(1_000_000)))
    assert not moved


def test_a_long_prompt_is_read_beside_other_threads(counter: Counter) -> None:
    def begin() -> Session:
        return Session(LONG, SuffixDrafter(), max_seq_len=2 * len(LONG))

    assert any(counter.beside(begin)[1] for _ in range(20))


def test_steps_are_planned_and_committed_beside_other_threads(counter: Counter) -> None:
    planned = committed = False
    for attempt in range(ATTEMPTS):
        if attempt % 100 == 0:
            drafter = PTDDrafter(width=8, depth=12, max_draft_nodes=128, max_candidate_nodes=127)
            session = Session(PROMPT, drafter, max_seq_len=4096, max_new_tokens=4000)
            runner = ToyRunner(session, PROMPT, capacity=4096)
            runner.next_token = lambda context: (context[-1] * 5 + len(context)) % 11
        bucket, moved = counter.beside(session.plan, runner.staging)
        planned |= moved
        runner.launch(bucket)
        _, moved = counter.beside(session.commit, runner.wait())
        committed |= moved
        if planned and committed:
            return
    raise AssertionError((planned, committed))
