"""The candidate pool: of one request, or shared by all; bounded either way."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from reference.toy_models import hashed

from ptd_engine import ConfigError, PTDConfig, SamplingParams, _core
from ptd_engine.drafters import make_drafter
from ptd_engine.testing.toy import NextToken

from .conftest import WatchedEngine, engine_of
from .hooked import MODEL, A, B, Result, result

REQUESTS = 10_000
SMALL = PTDConfig(
    width=2,
    depth=2,
    max_draft_nodes=4,
    max_candidate_nodes=4,
    pool_nodes_per_key=6,
    pool_max_keys=8,
    recycle_verified=True,
    share_pool=True,
)


def engine_with(config: PTDConfig, model: NextToken = MODEL) -> WatchedEngine:
    return engine_of(model, make_drafter(config, device_type="cpu"), vocab_size=24)


def pool_of(engine: WatchedEngine) -> _core.CandidatePool:
    assert isinstance(engine.drafter, _core.PTDDrafter)
    return engine.drafter.pool


def outcome(found: Result) -> tuple[list[int], str | None]:
    return found[0], found[1]


def test_a_pool_is_of_one_request_unless_it_is_shared() -> None:
    own, shared = (engine_with(PTDConfig(share_pool=share)) for share in (False, True))
    first = result(own, A)
    assert result(shared, A) == first  # nothing was in the pool
    assert result(own, A) == first
    again = result(shared, A)
    assert outcome(again) == outcome(first)
    assert again[2]["steps"] < first[2]["steps"]  # its own output was in the pool already
    for prompt in (B, A, [7], B):
        assert outcome(result(shared, prompt)) == outcome(result(own, prompt))


def test_a_request_that_ends_early_leaves_its_share() -> None:
    engine = engine_with(PTDConfig(share_pool=True))
    for steps in (0, 1, 4):
        stream = engine.generate(A, SamplingParams(max_new_tokens=60))
        for _ in range(steps):
            next(stream)
        stream.close()
    assert pool_of(engine).total_nodes > 0
    assert outcome(result(engine, B)) == outcome(result(engine_with(PTDConfig()), B))


def test_sharing_is_a_yes_or_a_no() -> None:
    with pytest.raises(ConfigError, match="share_pool='all'"):
        PTDConfig(share_pool="all")  # type: ignore[arg-type]


def resident_bytes() -> int:
    statm = Path("/proc/self/statm")
    return int(statm.read_text().split()[1]) * 4096 if statm.exists() else 0


def test_ten_thousand_requests_stay_within_caps_and_memory() -> None:
    engine = engine_with(SMALL, hashed(24, 3, 1))
    draw, params = random.Random(5), SamplingParams(max_new_tokens=2)
    pool, most, before = pool_of(engine), 0, 0
    for number in range(REQUESTS):
        if number == REQUESTS // 4:
            before = resident_bytes()
        for _ in engine.generate([draw.randrange(24), draw.randrange(24)], params):
            most = max(most, pool.total_nodes)
            assert pool.key_count <= 8
    assert 6 < most <= 8 * 6
    assert resident_bytes() - before < 8 * 2**20
