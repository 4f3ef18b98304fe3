"""HybridDrafter: lossless, best path first, bounded, and the same again after every begin."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from lookup_driver import RankedRunner, random_limits, random_model, random_prompt
from reference.ptd_algorithm import NextToken, Settings, plain_decode
from reference.toy_models import hashed
from tape import Tape, on_tapes

from ptd_engine._core import HybridDrafter, InvalidArgument, Session

Step = tuple[list[tuple[int, int, float, int, bool]], list[int]]


def steps(
    drafter: HybridDrafter, model: NextToken, prompt: list[int], settings: Settings, vocabulary: int
) -> Iterator[Step]:
    """The candidates of each step and the tokens it emitted; checks the output at the end."""
    plain = plain_decode(model, prompt, settings)
    needs = drafter.needs()
    runner = RankedRunner(
        model, prompt, plain, vocab_size=vocabulary, max_path=settings.max_path, top_k=needs.top_k
    )
    session = Session(
        prompt,
        drafter,
        max_seq_len=settings.max_seq_len,
        max_new_tokens=settings.max_new_tokens,
        stop_ids=sorted(settings.eos_ids),
        max_path=settings.max_path,
        output_top_k=needs.top_k,
        max_nodes=settings.max_rows,
        vocab_size=vocabulary,
    )
    hear = session.observe_prompt if needs.prompt_outputs else None
    runner.prefill(prompt[:-1], prompt_len=len(prompt), observe=hear)
    while not session.finished:
        runner.launch(session.plan(runner.staging))
        tree = session.tree
        assert len(tree.tokens) <= settings.max_rows
        assert tree.n_verify - 1 == len(drafter.nodes) == drafter.budgets[-1]
        emitted, accepted = session.commit(runner.wait())
        assert [node[4] for node in drafter.nodes].count(True) == accepted
        yield drafter.nodes, emitted
    assert session.token_ids == plain


def settings_of(drafter: HybridDrafter, **changes: Any) -> Settings:
    return Settings(max_new_tokens=60, max_rows=1 + drafter.needs().max_nodes, **changes)


@on_tapes(examples=400, length=120)
def test_any_options_give_the_plain_output(tape: Tape) -> None:
    vocabulary = tape.between(2, 9)
    candidates, drafts = tape.between(1, 20), tape.below(2) * tape.between(1, 8)
    eos = [tape.below(vocabulary)] if tape.one_in(3) else []
    drafter = HybridDrafter(
        candidates,
        auto_budget=tape.one_in(3),
        max_draft_nodes=drafts,
        width=tape.between(1, 3),
        depth=tape.between(1, 5),
        successors=tape.between(1, 8),
        prompt_outputs=tape.one_in(2),
        keep_statistics=tape.one_in(2),
        table_entries=tape.between(16, 200),
        sources=tape.below(128),
        eos_ids=eos,
    )
    for _ in range(2):
        prompt = random_prompt(tape, vocabulary)
        settings = random_limits(tape, vocabulary, len(prompt), candidates + drafts)
        model = random_model(tape, vocabulary)
        for nodes, _ in steps(drafter, model, prompt, settings, vocabulary):
            probabilities = [1.0, *(node[2] for node in nodes)]
            assert probabilities == sorted(probabilities, reverse=True)
            places = [(parent, token) for token, parent, *_ in nodes]
            assert len(set(places)) == len(places)
            for row, (token, parent, probability, sources, _accepted) in enumerate(nodes, 1):
                assert parent < row
                assert 0 <= token < vocabulary
                assert 0.0 < probability <= probabilities[parent]
                assert sources > 0
                if parent > 0:
                    assert nodes[parent - 1][0] not in eos


def test_a_text_that_repeats_itself_is_drafted_in_long_runs() -> None:
    drafter = HybridDrafter(8)
    period = [5, 9, 2, 7, 1, 3, 8]

    def model(context: Any) -> int:
        return period[(period.index(context[-1]) + 1) % len(period)]

    emitted = [len(new) for _, new in steps(drafter, model, period, settings_of(drafter), 10)]
    assert max(emitted) == 9
    assert len(emitted) < 20


def test_a_new_request_knows_nothing_of_the_last_one() -> None:
    model, prompt = hashed(9, 3, 2), [1, 2, 3, 4]
    used = HybridDrafter(12, max_draft_nodes=4, prompt_outputs=True)
    settings = settings_of(used)
    for _ in steps(used, hashed(9, 4, 2), [4, 4, 2], settings, 9):
        pass
    fresh = HybridDrafter(12, max_draft_nodes=4, prompt_outputs=True)
    again = list(steps(used, model, prompt, settings, 9))
    assert again == list(steps(fresh, model, prompt, settings, 9))
    assert used.source_counts == fresh.source_counts
    kept = HybridDrafter(12, keep_statistics=True)
    before = kept.acceptance_state
    for _ in steps(kept, model, prompt, settings_of(kept), 9):
        pass
    learned = kept.acceptance_state
    assert learned != before
    Session([1, 2], kept, max_seq_len=20, output_top_k=8)
    assert kept.acceptance_state == learned


def test_what_sources_did_is_counted() -> None:
    drafter = HybridDrafter(12)
    seen = [nodes for nodes, _ in steps(drafter, hashed(9, 3, 2), [1, 2], settings_of(drafter), 9)]
    counts = drafter.source_counts
    assert list(counts) == [
        "long text",
        "short text",
        "context",
        "pair",
        "token",
        "pool",
        "runner-up",
    ]
    for bit, (proposed, accepted, alone) in enumerate(counts.values()):
        own = [node for nodes in seen for node in nodes if node[3] >> bit & 1]
        assert proposed == len(own)
        assert accepted == sum(node[4] for node in own)
        assert alone == sum(node[4] for node in own if node[3] == 1 << bit)
    assert counts["pool"] == (0, 0, 0)  # no draft rows, no pool
    right = sum(node[4] for nodes in seen for node in nodes)
    assert right > 0
    proposed, predicted, came_true = drafter.reliability
    assert sum(came_true) >= right
    assert all(0 <= t <= p for p, t in zip(proposed, came_true, strict=True))
    assert all(total <= count for total, count in zip(predicted, proposed, strict=True))


def test_no_source_means_plain_decoding() -> None:
    drafter = HybridDrafter(12, sources=0)
    for nodes, emitted in steps(drafter, hashed(9, 3, 2), [1, 2], settings_of(drafter), 9):
        assert nodes == []
        assert len(emitted) == 1


def test_the_context_limit_is_kept() -> None:
    drafter = HybridDrafter(20)
    settings = settings_of(drafter, max_seq_len=12)
    for _ in steps(drafter, hashed(5, 3, 2), [1, 2], settings, 5):
        pass


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("max_candidate_nodes", 0),
        ("max_candidate_nodes", 256),
        ("max_draft_nodes", 192),
        ("successors", 9),
        ("table_entries", 15),
        ("width", 0),
    ],
)
def test_bad_options_are_named(option: str, value: Any) -> None:
    with pytest.raises(InvalidArgument, match=option):
        HybridDrafter(**{option: value})


def test_a_state_of_the_wrong_size_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"len\(state\)=1"):
        HybridDrafter().load_acceptance_state([0.5])
