"""LookaheadDrafter against its literal twin and plain decoding."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from reference.lookahead import Lookahead
from reference.ptd_algorithm import NextToken, Settings, plain_decode
from reference.toy_models import hashed
from session_driver import generate
from tape import Tape, on_tapes
from window_twins import check_lockstep, random_limits, random_model

from ptd_engine._core import InvalidArgument, LookaheadDrafter, Session


def check(
    next_token: NextToken,
    prompt: list[int],
    settings: Settings,
    drafter: LookaheadDrafter,
    twin: Lookahead,
) -> Session:
    return check_lockstep(
        drafter,
        twin,
        next_token,
        prompt,
        settings,
        twin.pool.keys,
        lambda: twin.window.levels,
    )


@on_tapes(examples=500, length=100)
def test_every_step_follows_the_twin_and_plain_decoding(tape: Tape) -> None:
    vocabulary = tape.between(2, 9)
    prompt = [tape.below(vocabulary) for _ in range(tape.between(1, 12))]
    options: dict[str, Any] = {
        "level": tape.between(3, 6),
        "window": tape.between(1, 6),
        "guesses": tape.between(1, 4),
        "prompt_ngrams": tape.one_in(2),
        "faithful": tape.one_in(2),
        "pool_max_keys": tape.between(1, 6),
        "seed": tape.below(256),
    }
    drafter, twin = LookaheadDrafter(**options), Lookahead(**options)
    limits = random_limits(tape, vocabulary, len(prompt), drafter.needs().max_nodes)
    check(random_model(tape, vocabulary), prompt, limits, drafter, twin)


@pytest.mark.parametrize(("level", "window", "guesses", "full"), [(5, 15, 15, 59), (5, 7, 7, 27)])
def test_published_settings_fill_one_level_a_step(
    level: int, window: int, guesses: int, full: int
) -> None:
    prompt = [3, 1, 4, 1, 5, 9, 2, 6]
    drafter = LookaheadDrafter(level=level, window=window, guesses=guesses)
    twin = Lookahead(level=level, window=window, guesses=guesses)
    settings = Settings(max_new_tokens=120)
    session = check(hashed(50, 1, 2), prompt, settings, drafter, twin)
    assert drafter.needs().max_nodes == full + guesses * (level - 1)
    assert session.stats["accepted"] > 20
    # Warm-up: W + N - 3 columns, then each level loses a column and one more stands.
    warm_up = [window + 2, (window + 1) + (window + 2), window + 2 * (window + 1)]
    steps = session.stats["steps"]
    assert session.stats["draft_nodes"] == sum(warm_up) + (steps - 3) * full


def test_the_window_hangs_below_the_text_as_published() -> None:
    drafter = LookaheadDrafter(level=4, window=3, guesses=2)
    session = Session([7, 8], drafter, max_seq_len=100)
    assert [len(level) for level in drafter.window] == [4]
    assert set(drafter.window[0]) <= {7, 8}
    twin = Lookahead(level=4, window=3, guesses=2)
    settings = Settings(max_new_tokens=3)
    session = check(hashed(9, 1, 1), [7, 8], settings, drafter, twin)
    tree = session.tree
    # Chain of two, then three columns twice: the first below the root, the others along the chain.
    first = tree.n_verify
    parents = [p - first if p else -1 for p in tree.parents[first:]]
    assert parents == [-1, 0, -1, 0, 1, 2, 3, 4]


def test_a_faithful_step_outputs_at_most_n_minus_1_tokens() -> None:
    prompt, model = [1, 2, 3], hashed(12, 5, 1)
    most = {}
    for faithful in (False, True):
        drafter = LookaheadDrafter(level=4, window=5, guesses=5, faithful=faithful)
        session = Session(prompt, drafter, max_seq_len=500, max_new_tokens=80)
        assert drafter.needs().max_accepted == (2 if faithful else 0)
        assert generate(session, prompt, model) == plain_decode(
            model, prompt, Settings(max_new_tokens=80)
        )
        histogram = session.stats["accepted_histogram"]
        most[faithful] = max(k for k, count in enumerate(histogram) if count)
    assert most == {False: 3, True: 2}


def test_prompt_ngrams_are_there_from_the_beginning() -> None:
    prompt = [1, 2, 3, 4, 1, 2, 5]
    drafter = LookaheadDrafter(level=3, window=2, guesses=2, prompt_ngrams=True)
    Session(prompt, drafter, max_seq_len=100)
    assert list(drafter.pool.items()) == [
        (2, [(3, 4)]),
        (3, [(4, 1)]),
        (4, [(1, 2)]),
        (1, [(2, 3), (2, 5)]),
    ]
    without = LookaheadDrafter(level=3, window=2, guesses=2)
    Session(prompt, without, max_seq_len=100)
    assert without.pool == {}


def test_a_request_leaves_nothing_behind() -> None:
    drafter = LookaheadDrafter(level=4, window=5, guesses=3, prompt_ngrams=True, seed=9)
    model = hashed(20, 5, 2)
    seen = []
    for prompt in ([1, 2, 3], [7, 7, 8, 9, 10, 11], [1, 2, 3]):
        session = Session(prompt, drafter, max_seq_len=500, max_new_tokens=60)
        generate(session, prompt, model)
        seen.append((session.token_ids, session.stats, drafter.pool, drafter.window))
    assert seen[0] == seen[2]
    assert seen[0] != seen[1]


def test_the_pool_keeps_its_bounds() -> None:
    drafter = LookaheadDrafter(level=3, window=9, guesses=2, prompt_ngrams=True, pool_max_keys=5)
    prompt = [1, 2, 3]
    session = Session(prompt, drafter, max_seq_len=2000, max_new_tokens=600)
    generate(session, prompt, hashed(200, 3, 3))
    assert len(drafter.pool) == 5
    assert max(len(tuples) for tuples in drafter.pool.values()) == 2
    assert all(len(ngram) == 2 for ngram in itertools.chain(*drafter.pool.values()))


def test_the_seed_decides_the_first_level_and_not_the_output() -> None:
    prompt, model = list(range(30)), hashed(30, 1, 2)
    outputs, firsts = set(), set()
    for seed in range(5):
        drafter = LookaheadDrafter(seed=seed)
        session = Session(prompt, drafter, max_seq_len=500, max_new_tokens=50)
        firsts.add(tuple(drafter.window[0]))
        outputs.add(tuple(generate(session, prompt, model)))
    assert (len(outputs), len(firsts)) == (1, 5)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"level": 2}, "level=2"),
        ({"window": 0}, "window=0"),
        ({"guesses": 0}, "guesses=0"),
        ({"pool_max_keys": 0}, "max_keys=0"),
        ({"window": 60}, "rows a step=299"),
    ],
)
def test_settings_out_of_range_are_named(options: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidArgument, match=field):
        LookaheadDrafter(**options)
