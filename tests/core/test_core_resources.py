"""Memory stays bounded (B14) and long C++ calls leave other Python threads running (G14)."""

from __future__ import annotations

import random
import resource
import sys
import threading
import time

import numpy as np

from ptd_engine._core import CandidatePool, DraftTree, PTDDrafter, Session, plan_layout

VOCABULARY = 3000
ROWS = 40


def fast_run(session: Session, block: np.ndarray, table: np.ndarray) -> None:
    """The model table[token], read straight from the block's token ids."""
    offset, size = plan_layout(ROWS, 64)["token_ids"]
    tokens = block[offset : offset + size].view(np.int32)
    while not session.finished:
        session.plan(block)
        session.commit(table[tokens])


def new_session(drafter: PTDDrafter, prompt: list[int], new_tokens: int) -> Session:
    return Session(
        prompt, drafter, max_seq_len=100_000, max_new_tokens=new_tokens, node_buckets=[ROWS]
    )


def random_table(seed: int, vocabulary: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, vocabulary, VOCABULARY, np.int32)


def test_b14_ten_thousand_generations_keep_the_caps_and_the_memory() -> None:
    drafter = PTDDrafter(4, 4, 24, 15, pool_nodes_per_key=12, pool_max_keys=16)
    draw = random.Random(1)
    block = np.zeros(plan_layout(ROWS, 64)["total"], np.uint8)
    capacities, memory = set(), 0
    for number in range(10_000):
        table = random_table(number % 50, draw.choice([4, 30, VOCABULARY]))
        prompt = [draw.randrange(VOCABULARY) for _ in range(6)]
        session = new_session(drafter, prompt, new_tokens=8)
        fast_run(session, block, table)
        assert len(session.token_ids) == 8
        assert drafter.pool.key_count <= 16
        assert drafter.pool.total_nodes <= 16 * 12
        assert len(drafter.draft_tree) <= 24
        if number == 3_000:
            capacities.add((drafter.pool.capacity, drafter.draft_tree.capacity))
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    capacities.add((drafter.pool.capacity, drafter.draft_tree.capacity))
    assert len(capacities) == 1  # the arenas stopped growing: freed nodes are used again
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory
    assert grown < 16 * 1024  # KiB


def test_b14_one_long_generation_keeps_the_caps() -> None:
    drafter = PTDDrafter(4, 4, 24, 15, pool_nodes_per_key=12, pool_max_keys=16)
    block = np.zeros(plan_layout(ROWS, 64)["total"], np.uint8)
    session = new_session(drafter, [1, 2, 3], new_tokens=30_000)
    offset, size = plan_layout(ROWS, 64)["token_ids"]
    tokens = block[offset : offset + size].view(np.int32)
    steps = 0
    while not session.finished:
        session.plan(block)
        session.commit(random_table(steps // 40, VOCABULARY)[tokens])  # the model keeps changing
        steps += 1
        assert drafter.pool.key_count <= 16
        assert drafter.pool.total_nodes <= 16 * 12
    assert drafter.pool.capacity <= 2 * (16 * 12 + 16 + 24 * 5)
    assert drafter.pool.key_count == 16


def test_g14_other_threads_run_during_a_long_session_call() -> None:
    """With a switch interval of a minute a thread gets the interpreter only where it is released.

    The ticker hands it back at once (sleep(0) releases it), so ticks between the entry and the
    exit of a C++ call can come from a release inside that call alone.
    """
    ticks = [0]
    stop = threading.Event()

    def tick() -> None:
        while not stop.is_set():
            ticks[0] += 1
            time.sleep(0)

    drafter = PTDDrafter(width=64, depth=64, max_draft_nodes=195, pool_nodes_per_key=4096)
    session = Session([1, 2, 3], drafter, max_seq_len=8192, max_new_tokens=4000)
    block = np.zeros(session.plan_bytes, np.uint8)
    output = np.zeros((256, 1), np.int32)
    table = np.random.default_rng(0)
    interval = sys.getswitchinterval()
    ticker = threading.Thread(target=tick)
    inside = 0
    try:
        sys.setswitchinterval(60.0)
        ticker.start()
        before = ticks[0]
        assert sum(range(2_000_000)) > 0  # keeps the interpreter: nothing ticks meanwhile
        assert ticks[0] == before
        for _ in range(300):
            session.plan(block)
            output[:, 0] = table.integers(0, 20, 256)
            before = ticks[0]
            session.commit(output)
            inside += ticks[0] - before
    finally:
        sys.setswitchinterval(interval)
        stop.set()
        ticker.join()
    assert inside > 0


def test_the_pool_has_no_use_of_a_tree_after_the_merge() -> None:
    pool = CandidatePool()
    tree = DraftTree(4, 6)
    tree.init([[1, 2, 3]])
    pool.merge(tree)
    tree.init([[7]])
    del tree
    assert pool.dump() == {1: [(2, [(3, [])])], 2: [(3, [])]}
