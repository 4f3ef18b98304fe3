"""Lockstep runs of a C++ window drafter and its literal twin."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from reference.ptd_algorithm import NextToken, Settings, plain_decode
from reference.toy_models import hashed, lookup_last, lookup_last_two
from reference.window_loop import WindowDrafter, decode
from session_driver import ToyRunner
from tape import Tape

from ptd_engine import _core


def random_model(tape: Tape, vocabulary: int) -> NextToken:
    kind = tape.below(3)
    if kind == 0:
        return lookup_last([tape.below(vocabulary) for _ in range(vocabulary)])
    if kind == 1:
        rows = range(vocabulary)
        return lookup_last_two([[tape.below(vocabulary) for _ in rows] for _ in rows])
    return hashed(vocabulary, tape.below(256), tape.between(1, 3))


def random_limits(tape: Tape, vocabulary: int, prompt_len: int, rows: int) -> Settings:
    """End-of-sequence ids, lengths and row caps; `rows` is what the drafter may ask for."""
    return Settings(
        eos_ids=frozenset(tape.below(4 * vocabulary) for _ in range(tape.below(3))),
        max_new_tokens=tape.between(1, 48),
        max_seq_len=prompt_len + tape.between(1, 60),
        max_rows=tape.between(2, rows + 1) if tape.one_in(3) else rows + 1,
    )


def check_lockstep(
    drafter: Any,
    twin: WindowDrafter,
    next_token: NextToken,
    prompt: Sequence[int],
    settings: Settings,
    twin_pool: dict[int, list[tuple[int, ...]]],
    twin_levels: Any,
) -> _core.Session:
    """Run both to the end; every step's tree, output, window and pool must be equal."""
    session = _core.Session(
        prompt,
        drafter,
        max_seq_len=settings.max_seq_len,
        max_new_tokens=settings.max_new_tokens,
        stop_ids=sorted(settings.eos_ids),
        node_buckets=[settings.max_rows],
    )
    runner = ToyRunner(session, list(prompt))
    for step in decode(next_token, prompt, twin, settings):
        tokens, _ = runner.step(next_token)
        tree = session.tree
        assert tree.tokens == step.plan.tokens
        assert tree.parents == step.plan.parents
        assert tree.n_verify == step.plan.n_verify
        assert len(tree) <= min(settings.max_rows, 1 + drafter.needs().max_nodes)
        assert tokens == step.output
        assert drafter.window == twin_levels()
        assert drafter.pool == twin_pool
        assert list(drafter.pool) == list(twin_pool)
    assert session.finished
    plain = plain_decode(next_token, prompt, settings)
    assert session.token_ids == plain
    assert session.finish_reason == ("stop" if plain[-1] in settings.eos_ids else "length")
    return session
