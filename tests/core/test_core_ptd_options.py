"""Expansion, initialisation and layout of PTD: what each does, and what is refused."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from reference.ptd_algorithm import Settings, context_chains, first_chains
from reference.toy_models import hashed, ranked
from session_driver import ToyRunner, run
from tape import Tape, on_tapes

from ptd_engine._core import DraftTree, InvalidArgument, PTDDrafter, Session


def begun(prompt: list[int], **options: Any) -> PTDDrafter:
    """A drafter that has begun a request with this prompt."""
    drafter = PTDDrafter(**options)
    Session(prompt, drafter, max_seq_len=999, output_top_k=drafter.needs().top_k)
    return drafter


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("expansion", "beam"),
        ("expansion_k", 0),
        ("expansion_k", 65),
        ("expansion_p", 0.0),
        ("expansion_p", 1.5),
        ("expansion_p", float("nan")),
        ("initialisation", "entities"),
        ("layout", "chain"),
    ],
)
def test_bad_options_are_named(field: str, value: Any) -> None:
    with pytest.raises(InvalidArgument, match=f"{field}=.*allowed is"):
        PTDDrafter(**{field: value})


def test_what_each_expansion_needs() -> None:
    def needs(**options: Any) -> tuple[int, float]:
        found = PTDDrafter(expansion_k=3, expansion_p=0.5, **options).needs()
        return found.top_k, found.top_p

    assert needs() == needs(expansion="greedy") == (0, 0.0)
    assert needs(expansion="top-k") == (3, 0.0)
    assert needs(expansion="top-p") == (3, 0.5)


@pytest.mark.parametrize(("expansion", "top_p"), [("greedy", 0), ("top-k", 0), ("top-p", 0.25)])
def test_the_plan_carries_the_successors_top_p(expansion: str, top_p: float) -> None:
    drafter = PTDDrafter(expansion=expansion, expansion_p=0.25)
    session = Session([1, 2, 3], drafter, max_seq_len=99, top_k=4, temperature=1.0, output_top_k=4)
    runner = ToyRunner(session, [1, 2, 3])
    runner.prepare()
    assert runner.plan.sampling.tolist() == [4, 1, 0, top_p]


def test_rows_append_rank_by_rank_until_the_tree_is_full() -> None:
    tree = DraftTree(width=3, depth=6, max_nodes=6)
    tree.init([[1], [2]])
    tree.expand([3, 4, 5, 6, 7, 8], each=3)
    assert tree.roots() == [(1, [(3, []), (4, [])]), (2, [(6, []), (7, [])])]
    narrow = DraftTree(width=2, depth=6)
    narrow.init([[1]])
    narrow.expand([3, 4, 5], each=3)
    assert narrow.roots() == [(1, [(3, []), (4, [])])]


def test_the_number_of_predictions_is_checked() -> None:
    tree = DraftTree(width=3, depth=6)
    tree.init([[1], [2]])
    with pytest.raises(InvalidArgument, match=r"len\(predictions\)=3.*2 a row \(4\)"):
        tree.expand([3, 4, 5], each=2)


def test_top_k_one_is_greedy() -> None:
    model, prompt = hashed(20, 3, 2), [1, 2, 3, 4]
    one = ranked(model, 20, 1, salt=0, cut=False)
    seen = []
    for options in ({}, {"expansion": "top-k", "expansion_k": 1}):
        drafter = PTDDrafter(seed=5, **options)
        k = drafter.needs().top_k
        session = Session(prompt, drafter, max_seq_len=500, max_new_tokens=60, output_top_k=k)
        list(run(session, prompt, model, one if k else None))
        seen.append((session.token_ids, session.stats, drafter.draft_tree.roots()))
    assert seen[0] == seen[1]


@on_tapes(examples=600, length=40)
def test_the_context_is_cut_into_runs_from_its_end(tape: Tape) -> None:
    vocabulary = tape.between(2, 9)
    eos_ids = [tape.below(vocabulary)] if tape.one_in(2) else []
    width, depth = tape.between(1, 3), tape.between(1, 3)
    prompt = [tape.below(vocabulary) for _ in range(tape.between(1, 14))]
    options = {"width": width, "depth": depth, "eos_ids": eos_ids, "seed": tape.below(9)}
    drafter = begun(prompt, initialisation="context", **options)
    settings = Settings(width=width, depth=depth, eos_ids=frozenset(eos_ids))
    given = first_chains(context_chains(prompt, eos_ids), settings)
    assert drafter.initial_chains[: len(given)] == given
    # What is missing is drawn, as for "random".
    rest = drafter.initial_chains[len(given) :]
    assert all(set(chain) <= set(prompt) for chain in rest)
    assert len(drafter.initial_chains) <= min(2, width)


def test_context_begins_at_the_tokens_before_the_root() -> None:
    assert begun([1, 2, 3, 4, 5, 6], initialisation="context").initial_chains == [[4, 5], [2, 3]]
    assert begun([1, 2, 9, 4, 9], initialisation="context", eos_ids=[9]).initial_chains == [
        [2, 4],
        [1],
    ]


@on_tapes(examples=600, length=40)
def test_seeds_are_planted_in_their_order(tape: Tape) -> None:
    chains = [[tape.below(6) for _ in range(tape.below(5))] for _ in range(tape.below(5))]
    width, depth = tape.between(1, 3), tape.between(1, 3)
    drafter = PTDDrafter(width=width, depth=depth, eos_ids=[5], initialisation="ner")
    asked = []

    def source(prompt: list[int]) -> list[list[int]]:
        asked.append(prompt)
        return chains

    drafter.set_seed_source(source)
    Session([7, 8, 9], drafter, max_seq_len=99)
    settings = Settings(width=width, depth=depth, eos_ids=frozenset([5]))
    given = first_chains(chains, settings)
    assert drafter.initial_chains[: len(given)] == given
    assert len(drafter.initial_chains) <= min(2, width)
    assert asked == [[7, 8, 9]]


def test_a_source_is_asked_only_for_ner_and_ner_does_without_one() -> None:
    def fail(prompt: list[int]) -> list[list[int]]:
        raise AssertionError("asked")

    prompt = [1, 2, 3, 4]
    for initialisation in ("random", "context"):
        drafter = PTDDrafter(initialisation=initialisation)
        drafter.set_seed_source(fail)
        Session(prompt, drafter, max_seq_len=99)
    assert begun(prompt, initialisation="ner").initial_chains == begun(prompt).initial_chains
    drafter = PTDDrafter(initialisation="ner")
    drafter.set_seed_source(fail)
    with pytest.raises(AssertionError, match="asked"):
        Session(prompt, drafter, max_seq_len=99)
    drafter.set_seed_source(None)
    assert not drafter.has_seed_source
    Session(prompt, drafter, max_seq_len=99)


def test_a_source_may_be_asked_from_another_thread() -> None:
    drafter = PTDDrafter(initialisation="ner")
    drafter.set_seed_source(lambda prompt: [[5, 6]])
    done: list[bool] = []

    def begin() -> None:
        Session([1, 2], drafter, max_seq_len=99)
        done.append(True)

    thread = threading.Thread(target=begin)
    thread.start()
    thread.join(timeout=60)
    assert done and drafter.initial_chains[0] == [5, 6]


def test_a_chained_root_is_read_after_the_one_before() -> None:
    def first_plan(layout: str) -> tuple[list[int], list[int]]:
        drafter = PTDDrafter(layout=layout, initialisation="context")
        session = Session([1, 2, 3, 4, 5], drafter, max_seq_len=99)
        ToyRunner(session, [1, 2, 3, 4, 5]).prepare()
        return session.tree.tokens, session.tree.parents

    # Chains [3, 4] and [1, 2]; row 0 is the root.
    assert first_plan("sibling") == ([5, 3, 4, 1, 2], [-1, 0, 1, 0, 3])
    assert first_plan("chained") == ([5, 3, 4, 1, 2], [-1, 0, 1, 1, 3])
