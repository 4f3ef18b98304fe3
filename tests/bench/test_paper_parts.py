"""Likeness of texts, repetition within a draft, and the trees that are planned."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.paper.likeness import bleu, rouge_l, words
from bench.paper.plan import FULL, KINDS, METHODS, QUICK, Experiment, experiments
from bench.paper.similarity import repeated_share, similarity_by_step, watch
from ptd_engine import LLM, SamplingParams, _core

PTD = "ptd:width=2,depth=3"


def test_likeness_of_a_text_with_itself_and_with_another() -> None:
    text = "The cat sat on the mat, and the dog ran."
    assert rouge_l(text, text) == 1 and bleu(text, text) == pytest.approx(1)
    assert rouge_l(text, "unlike") == 0 and bleu("unlike", text) == 0
    assert rouge_l("", "") == bleu("", "") == 1 and rouge_l("", text) == bleu(text, "") == 0


def test_rouge_l_is_the_f1_of_the_common_subsequence() -> None:
    # "police the gunman": 3 of 4 words against 3 of 4, in order; then 2 of 4.
    assert rouge_l("police killed the gunman", "police kill the gunman") == pytest.approx(3 / 4)
    assert rouge_l("the gunman police killed", "police killed the gunman") == pytest.approx(2 / 4)
    assert rouge_l("a b", "a b c d e f") == pytest.approx(2 * (1 * 2 / 6) / (1 + 2 / 6))


def test_bleu_counts_clipped_ngrams_and_brevity() -> None:
    import math

    # 1-grams 2/3 (a second "a" is not in the reference), 2-grams (1+1)/(2+1), 3-grams (0+1)/(1+1),
    # no 4-gram; one word shorter than the reference.
    precision = (2 / 3 * 2 / 3 * 1 / 2 * 1) ** 0.25
    assert bleu("a b a", "a b c d") == pytest.approx(math.exp(1 - 4 / 3) * precision)
    assert words("Don't, 1.5!") == ["don", "'", "t", ",", "1", ".", "5", "!"]


def test_rows_that_repeat_each_other() -> None:
    tree = _core.TreeBuilder(1)
    assert repeated_share(tree, 1) == 0
    tree.add_candidate(0, 5)
    for _ in range(2):  # two branches alike
        first = tree.add_draft(0, 5)
        tree.add_draft(first, 6)
    assert repeated_share(tree, 1) == repeated_share(tree, 2) == 0.5  # the candidate is no draft
    assert repeated_share(tree, 3) == 0  # no row has three
    tree.add_draft(0, 7)
    assert repeated_share(tree, 1) == pytest.approx(2 / 5)


def test_a_prefix_that_branches_share_is_counted_once() -> None:
    tree = _core.TreeBuilder(1)
    first = tree.add_draft(0, 5)
    for token in (6, 7):
        tree.add_draft(first, token)
    assert repeated_share(tree, 1) == repeated_share(tree, 2) == 0


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_watching_does_not_change_what_is_written(tiny_model: Path, temperature: float) -> None:
    llm = LLM.from_pretrained(str(tiny_model), drafter=PTD, max_seq_len=64)
    params = SamplingParams(max_new_tokens=15, temperature=temperature, seed=3)
    prompt = llm.encode("ab ab ab")
    expected = llm.generate(prompt, params)
    sizes: list[int] = []
    assert watch(llm, prompt, params, lambda tree: sizes.append(len(tree))) == expected.token_ids
    stats = expected.stats
    assert len(sizes) == stats.steps
    assert sum(sizes) == stats.steps + stats.draft_nodes + stats.candidate_nodes
    found = similarity_by_step(llm, prompt, params)
    assert set(found) == {"1", "2", "3"} and {len(v) for v in found.values()} == {stats.steps}


def test_what_is_planned_can_be_made() -> None:
    from ptd_engine.drafters import make_drafter

    for scale in (FULL, QUICK):
        planned = experiments(scale, METHODS, 0.8)
        assert [e.kind for e in planned] == ["methods", *KINDS]
        assert [e.temperature for e in planned] == [0, 0.8, 0, 0, 0, 0]
        for label in {label for e in planned for label in e.drafters}:
            assert make_drafter(label, device_type="cpu").needs().max_nodes <= 255
    (only,) = experiments(QUICK, ["ptd"], 0.8, ["depth"])
    assert only == Experiment("depth", 0.0, only.drafters) and only.name == "depth@0"
