"""The wall clock may jump (NTP, a suspended machine): nothing that is timed may notice."""

from __future__ import annotations

import ast
import time
from itertools import count
from pathlib import Path

import pytest
from server.conftest import COMPLETIONS, PIECES, PROMPT, make_toy, serving

ROOT = Path(__file__).parents[2]
# Where the wall clock is what is meant: OpenAI's `created`, and when a server was started.
WALL_CLOCK = {"ptd_engine/server/answers.py", "ptd_engine/server/service.py"}


def wall_clock_calls(source: str) -> list[int]:
    """Lines that ask for the time of day."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute):
            name = ast.unparse(node)
            if name in {"time.time", "time.time_ns"} or name.endswith(("datetime.now", ".utcnow")):
                found.append(node.lineno)
        if isinstance(node, ast.ImportFrom) and node.module == "time":
            found += [node.lineno for alias in node.names if alias.name.startswith("time")]
    return found


def test_durations_are_not_taken_from_the_wall_clock() -> None:
    paths = [*ROOT.glob("ptd_engine/**/*.py"), *ROOT.glob("triton_kernels/**/*.py")]
    using = {
        path.relative_to(ROOT).as_posix()
        for path in paths
        if wall_clock_calls(path.read_text(encoding="utf-8"))
    }
    assert using == WALL_CLOCK
    assert wall_clock_calls("import time\na = time.time()\nb = time.monotonic()\n") == [2]


def test_the_core_takes_the_steady_clock() -> None:
    sources = [*ROOT.glob("csrc/core/**/*.cpp"), *ROOT.glob("csrc/include/**/*.h")]
    texts = [path.read_text(encoding="utf-8") for path in sources]
    assert any("steady_clock" in text for text in texts)
    assert not any("system_clock" in text or "high_resolution_clock" in text for text in texts)


def test_requests_with_a_limit_survive_jumps_of_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = count()
    # A day ahead, then a day back, at every call.
    monkeypatch.setattr(time, "time", lambda: 1.8e9 + 86400.0 * (-1) ** next(calls))
    toy = make_toy(gated=False)
    body = {"prompt": PROMPT, "max_tokens": 20, "timeout": 60.0}
    with serving(toy.llm, request_timeout_s=60.0) as running:
        for _ in range(3):
            reply = running.post(COMPLETIONS, body)
            assert reply.status == 200
            assert reply.json["choices"][0]["text"] == "".join(PIECES[:20])
            timings = reply.json["timings"]
            assert timings["total_s"] > 0
            assert all(0 <= value < 60 for value in timings.values())
    assert next(calls) > 0  # the clock that jumps was asked
