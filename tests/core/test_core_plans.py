"""TreeBuilder and the packed StepPlan against the reference plan."""

from __future__ import annotations

import numpy as np
import pytest
from reference.philox import philox_uniform
from reference.step_plan import StepPlan, build_plan
from session_driver import read_plan
from tape import Tape, on_tapes

from ptd_engine._core import InvalidArgument, TreeBuilder, plan_layout


def random_forest(tape: Tape, most: int) -> list[tuple[int, int]]:
    count = tape.between(0, most)
    return [(tape.below(50), tape.below(row + 1) - 1) for row in range(count)]


def fill(
    tree: TreeBuilder, candidates: list[tuple[int, int]], drafts: list[tuple[int, int]]
) -> tuple[list[int], list[int]]:
    """The step row of every candidate and of every draft node, -1 where it found no place."""
    placed: tuple[list[int], list[int]] = ([], [])
    for rows, forest, add in (
        (placed[0], candidates, tree.add_candidate),
        (placed[1], drafts, tree.add_draft),
    ):
        for token, parent in forest:
            above = 0 if parent < 0 else rows[parent]
            rows.append(-1 if above < 0 else add(above, token))
    return placed


def check_against(plan: StepPlan, tree: TreeBuilder) -> None:
    assert tree.tokens == plan.tokens
    assert tree.parents == plan.parents
    assert tree.depths == [position - plan.prefix_len for position in plan.positions]
    assert tree.n_verify == plan.n_verify
    assert len(tree) == len(plan.tokens)
    assert all(parent < row for row, parent in enumerate(tree.parents))


@on_tapes(examples=1500, length=160)
def test_plan_follows_the_reference(tape: Tape) -> None:
    candidates, drafts = random_forest(tape, 30), random_forest(tape, 40)
    prefix_len = tape.below(40)
    max_seq_len = prefix_len + tape.between(1, 12)
    max_path, max_rows = tape.between(1, 12), tape.between(1, 80)
    tree = TreeBuilder(77, max_rows, max_path, max_seq_len - 1 - prefix_len)
    placed = fill(tree, candidates, drafts)
    plan = build_plan(
        77,
        prefix_len,
        candidates,
        drafts,
        max_seq_len=max_seq_len,
        max_rows=max_rows,
        max_path=max_path,
    )
    check_against(plan, tree)
    assert placed[0] == [-1 if row is None else row for row in plan.candidate_rows]
    assert placed[1] == [-1 if row is None else row for row in plan.draft_rows]
    assert tree.room == max_rows - len(tree)

    n = len(plan.tokens)
    n_bucket = n + tape.below(70)
    n_commit = tape.below(min(prefix_len, max_path) + 1)
    first = prefix_len - n_commit
    commit_src = sorted(first + i + tape.below(3) for i in range(n_commit))
    sampled, seed = tape.below(2), tape.below(256)
    filters = (tape.below(3), (1.0, 0.5)[tape.below(2)], (0.0, 0.25)[tape.below(2)])
    block = tree.pack(
        prefix_len, commit_src, 0.5 * sampled, *filters, seed, n_bucket=n_bucket, max_path=max_path
    )
    view = read_plan(block, n_bucket, max_path)
    assert (view.n_nodes, view.n_verify, view.prefix_len, view.n_commit) == (
        n,
        plan.n_verify,
        prefix_len,
        n_commit,
    )
    assert view.token_ids.tolist() == plan.tokens + [77] * (n_bucket - n)
    assert view.positions.tolist() == plan.positions + [prefix_len] * (n_bucket - n)
    assert max(view.positions) < max_seq_len
    assert view.masks == plan.padded_masks(n_bucket)
    assert view.commit_src.tolist() == commit_src + [first + i for i in range(n_commit, max_path)]
    moves = commit_src != list(range(first, prefix_len))
    filtering = bool(sampled) and filters != (0, 1.0, 0.0)
    assert view.flags == moves * 1 + sampled * 2 + filtering * 4
    assert view.sampling.tolist() == [*filters, 0]
    rows_that_sample = plan.n_verify if sampled else 0
    assert view.temperature.tolist() == [0.5] * rows_that_sample + [0] * (
        n_bucket - rows_that_sample
    )
    expected = [philox_uniform(seed, position) for position in plan.positions[:rows_that_sample]]
    assert view.uniform[:rows_that_sample].tolist() == expected


@pytest.mark.parametrize("n_bucket", [1, 63, 64, 65, 128, 255, 256])
def test_layout_is_aligned_without_overlap(n_bucket: int) -> None:
    layout = dict(plan_layout(n_bucket, 64))
    total = layout.pop("total")
    fields = sorted(layout.values())
    roles = {"header", "sampling", "token_ids", "positions", "commit_src"}
    assert set(layout) == roles | {"temperature", "uniform", "mask"}
    assert all(offset % 64 == 0 for offset, _ in fields)
    ends = [offset + size for offset, size in fields]
    assert all(end <= start for end, (start, _) in zip(ends, fields[1:], strict=False))
    assert total % 64 == 0
    assert ends[-1] <= total
    assert layout["header"][1] == 32
    assert layout["mask"][1] == n_bucket * -(-n_bucket // 64) * 8


def test_the_largest_plan_has_a_full_chain_of_masks() -> None:
    tree = TreeBuilder(1, 256, 255)
    for row in range(255):
        assert tree.add_draft(row, row) == row + 1
    assert tree.add_draft(0, 3) == -1
    view = read_plan(tree.pack(10, n_bucket=256, max_path=255), 256, 255)
    assert view.masks == [(1 << row + 1) - 1 for row in range(256)]
    assert view.positions.tolist() == list(range(10, 266))


def test_a_wrong_tree_is_refused_with_a_reason() -> None:
    tree = TreeBuilder(1)
    first = tree.add_candidate(0, 5)
    with pytest.raises(InvalidArgument, match="parent=9"):
        tree.add_candidate(9, 5)
    with pytest.raises(InvalidArgument, match="token=-1"):
        tree.add_candidate(0, -1)
    with pytest.raises(InvalidArgument, match=f"parent={first}"):
        tree.add_draft(first, 5)  # a draft below a candidate would see the other tree
    tree.add_draft(0, 5)
    with pytest.raises(InvalidArgument, match="add_candidate"):
        tree.add_candidate(0, 6)
    with pytest.raises(InvalidArgument, match="node_bucket=2"):
        tree.pack(3, n_bucket=2)
    assert np.array_equal(tree.parents, [-1, 0, 0])
