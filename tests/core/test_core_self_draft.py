"""SelfDraftDrafter against its literal twin and plain decoding."""

from __future__ import annotations

from typing import Any

import pytest
from reference.ptd_algorithm import NextToken, Settings, plain_decode
from reference.self_draft import SelfDraft
from reference.toy_models import hashed
from session_driver import generate, run
from tape import Tape, on_tapes
from window_twins import check_lockstep, random_limits, random_model

from ptd_engine._core import InvalidArgument, SelfDraftDrafter, Session


def check(
    next_token: NextToken,
    prompt: list[int],
    settings: Settings,
    drafter: SelfDraftDrafter,
    twin: SelfDraft,
) -> Session:
    def levels() -> list[list[int]]:
        assert drafter.perturbations == twin.perturbations
        return twin.window.levels

    return check_lockstep(drafter, twin, next_token, prompt, settings, twin.cache.keys, levels)


def random_corpus(tape: Tape, vocabulary: int, ngram: int) -> dict[int, list[list[int]]]:
    return {
        tape.below(vocabulary): [
            [tape.below(vocabulary) for _ in range(ngram)] for _ in range(tape.between(1, 4))
        ]
        for _ in range(tape.below(4))
    }


@on_tapes(examples=500, length=120)
def test_every_step_follows_the_twin_and_plain_decoding(tape: Tape) -> None:
    vocabulary = tape.between(2, 9)
    prompt = [tape.below(vocabulary) for _ in range(tape.between(1, 12))]
    length = tape.between(3, 7)
    ngram = tape.between(2, length - 1)
    options: dict[str, Any] = {
        "branches": tape.between(1, 5),
        "length": length,
        "ngram": ngram,
        "ngrams_per_key": tape.between(1, 4),
        "corpus": random_corpus(tape, vocabulary, ngram) if tape.one_in(2) else {},
        "corpus_candidates": tape.below(4),
        "faithful": tape.one_in(2),
        "pool_max_keys": tape.between(1, 6),
        "seed": tape.below(256),
    }
    drafter, twin = SelfDraftDrafter(**options), SelfDraft(**options)
    limits = random_limits(tape, vocabulary, len(prompt), drafter.needs().max_nodes)
    check(random_model(tape, vocabulary), prompt, limits, drafter, twin)


def test_published_settings_draft_six_branches() -> None:
    prompt = [3, 1, 4, 1, 5, 9, 2, 6]
    drafter, twin = SelfDraftDrafter(), SelfDraft()
    session = check(hashed(50, 1, 2), prompt, Settings(max_new_tokens=120), drafter, twin)
    assert drafter.needs().max_nodes == 5 * 2 + 4 * 6 + 10 * 4
    assert [len(level) for level in drafter.window] == [5, 6, 6, 6, 6]
    assert len(drafter.perturbations) == 5
    assert {len(tokens) for tokens in drafter.perturbations} <= {1, 2}
    assert session.stats["accepted"] > 20
    tree = session.tree
    drafts = range(tree.n_verify, len(tree))
    assert len(drafts) == 24 + sum(len(tokens) for tokens in drafter.perturbations)
    assert sum(tree.parents[row] == 0 for row in drafts) == 6  # branches of their own


def test_a_faithful_step_outputs_at_most_an_ngram() -> None:
    prompt, model = [1, 2, 3], hashed(12, 5, 1)
    most = {}
    for faithful in (False, True):
        drafter = SelfDraftDrafter(faithful=faithful)
        session = Session(prompt, drafter, max_seq_len=500, max_new_tokens=80)
        assert drafter.needs().max_accepted == (3 if faithful else 0)
        most[faithful] = max(len(tokens) for tokens in run(session, prompt, model))
        assert session.token_ids == plain_decode(model, prompt, Settings(max_new_tokens=80))
    assert most == {False: 5, True: 4}


def test_the_context_is_in_the_cache_from_the_beginning() -> None:
    drafter = SelfDraftDrafter(ngram=2)
    Session([1, 2, 3, 1, 2, 4], drafter, max_seq_len=100)
    assert list(drafter.pool.items()) == [(2, [(3, 1)]), (3, [(1, 2)]), (1, [(2, 3), (2, 4)])]


def test_the_corpus_adds_chains_that_the_cache_does_not_have() -> None:
    prompt, model = [5], hashed(30, 2, 1)
    plain = plain_decode(model, prompt, Settings(max_new_tokens=40))
    corpus = {token: [[1, 1, 1, 1], [2, 2, 2, 2], [3, 3, 3, 3]] for token in range(30)}
    for limit in range(4):
        drafter = SelfDraftDrafter(corpus=corpus, corpus_candidates=limit)
        session = Session(prompt, drafter, max_seq_len=500, max_new_tokens=40)
        assert generate(session, prompt, model) == plain
        tree = session.tree
        chains = [row for row in range(1, tree.n_verify) if tree.parents[row] == 0]
        assert len(chains) >= limit
        assert [tree.tokens[row] for row in chains[len(chains) - limit :]] == [1, 2, 3][:limit]


def test_a_corpus_that_knows_the_text_saves_steps() -> None:
    prompt, model = [5], hashed(400, 2, 1)
    plain = plain_decode(model, prompt, Settings(max_new_tokens=14))
    text = prompt + plain
    corpus = {text[i]: [text[i + 1 : i + 5]] for i in range(len(text) - 4)}
    steps = []
    for lists in ({}, corpus):
        session = Session(prompt, SelfDraftDrafter(corpus=lists), max_seq_len=99, max_new_tokens=14)
        assert generate(session, prompt, model) == plain
        steps.append(session.stats["steps"])
    assert steps[1] < steps[0]


def test_a_request_leaves_nothing_behind() -> None:
    drafter = SelfDraftDrafter(seed=9)
    model = hashed(20, 5, 2)
    seen = []
    for prompt in ([1, 2, 3], [7, 7, 8, 9, 10, 11], [1, 2, 3]):
        session = Session(prompt, drafter, max_seq_len=500, max_new_tokens=60)
        generate(session, prompt, model)
        seen.append((session.token_ids, session.stats, drafter.pool, drafter.window))
    assert seen[0] == seen[2]
    assert seen[0] != seen[1]


def test_the_cache_keeps_its_bounds() -> None:
    drafter = SelfDraftDrafter(ngrams_per_key=2, pool_max_keys=3)
    prompt = [1, 2, 3]
    session = Session(prompt, drafter, max_seq_len=2000, max_new_tokens=600)
    generate(session, prompt, hashed(6, 3, 3))
    assert len(drafter.pool) == 3
    assert max(len(tuples) for tuples in drafter.pool.values()) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"branches": 0}, "branches=0"),
        ({"length": 2}, "length=2"),
        ({"ngram": 6}, "ngram=6"),
        ({"ngrams_per_key": 0}, "ngrams_per_key=0"),
        ({"corpus_candidates": -1}, "corpus_candidates=-1"),
        ({"corpus": {3: [[1, 2, 3]]}}, "n-gram of the corpus=3"),
        ({"corpus": {-3: [[1, 2, 3, 4]]}}, "corpus key=-3"),
        ({"branches": 64}, "rows a step=422"),
    ],
)
def test_settings_out_of_range_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        SelfDraftDrafter(**options)
