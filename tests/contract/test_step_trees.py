"""The trees that a stream shows: those that the drafter made, with the path that was accepted."""

from __future__ import annotations

from ptd_engine import SamplingParams
from ptd_engine.outputs import StepTree
from ptd_engine.testing.forced import FixedTrees

from .conftest import OTHER, PROMPT, engine_of, ids_of, llm_of, scripted, tokenizer_of, toy

PIECES = ["a", "b", "c", "d", "e"]
A, B, C, D, E = ids_of(PIECES)
PARAMS = SamplingParams(max_new_tokens=5)


def test_trees_of_every_step() -> None:
    drafter = FixedTrees([(B, -1), (A, -1), (C, 1), (B, 1)], [(A, -1)])
    engine = engine_of(scripted([A, B, C, D, E], prompt_len=1, other=OTHER), drafter)
    chunks = list(llm_of(engine, tokenizer_of(PIECES)).stream([PROMPT], PARAMS, trees=True))
    assert [chunk.tree for chunk in chunks] == [
        StepTree([PROMPT, B, A, C, B], [-1, 0, 0, 2, 2], 5, [2, 4]),
        StepTree([C, A], [-1, 0], 2, []),
        StepTree([D, A], [-1, 0], 2, []),
        None,
    ]
    assert [chunk.accepted for chunk in chunks] == [2, 0, 0, 0]


def test_an_output_that_ends_inside_the_path() -> None:
    params = SamplingParams(max_new_tokens=2)
    first = next(iter(toy(PIECES, (4,)).stream([PROMPT], params, trees=True)))
    assert first.token_ids == [A, B] and first.accepted == 2
    assert first.tree is not None and len(first.tree.accepted_rows) == 2


def test_no_tree_unless_asked_for() -> None:
    assert {chunk.tree for chunk in toy(PIECES).stream([PROMPT], PARAMS)} == {None}
