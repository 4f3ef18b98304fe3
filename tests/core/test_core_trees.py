"""Draft tree and candidate pool: the C++ against the literal reference, and their invariants."""

from __future__ import annotations

from reference.candidate_pool import CandidatePool as ReferencePool
from reference.draft_tree import DraftTree as ReferenceTree
from tape import Tape, on_tapes

from ptd_engine._core import CandidatePool, DraftTree


def random_predictions(tape: Tape, count: int, vocabulary: int) -> list[int]:
    return [-1 if tape.one_in(9) else tape.below(vocabulary) for _ in range(count)]


def check_tree(tree: DraftTree, twin: ReferenceTree) -> None:
    rows = tree.rows()
    assert rows == twin.rows()
    assert tree.roots() == twin.nested()
    assert len(tree) == len(rows) <= twin.max_nodes
    roots = [token for token, _ in tree.roots()]
    assert len(roots) == len(set(roots)) <= twin.width
    assert all(parent < row for row, (_, parent) in enumerate(rows))
    siblings: dict[int, list[int]] = {}
    for token, parent in rows:
        siblings.setdefault(parent, []).append(token)
    for tokens in siblings.values():
        assert len(tokens) == len(set(tokens)) <= twin.width


def check_pool(pool: CandidatePool, twin: ReferencePool) -> None:
    dump = pool.dump()
    assert dump == twin.dump()
    assert list(dump) == list(twin.dump())  # least to most recently used
    assert len(dump) == pool.key_count <= twin.max_keys
    assert pool.total_nodes == twin.total_nodes()
    assert all(trie.size() - 1 <= twin.max_nodes_per_key for trie in twin.tries)


@on_tapes(examples=4500, length=240)
def test_tree_and_pool_follow_the_reference_step_by_step(tape: Tape) -> None:
    vocabulary = tape.between(2, 6)
    width, depth, max_nodes = tape.between(1, 4), tape.between(1, 5), tape.between(1, 24)
    eos_ids = sorted({tape.below(vocabulary) for _ in range(tape.below(3))})
    caps = (tape.between(1, 14), tape.between(1, 5))
    every_step_prunes = not tape.one_in(4)
    tree = DraftTree(width, depth, max_nodes, eos_ids)
    twin = ReferenceTree(width, depth, max_nodes, eos_ids)
    pool, pool_twin = CandidatePool(*caps), ReferencePool(*caps)
    chains = [
        [tape.below(vocabulary) for _ in range(tape.between(1, depth))]
        for _ in range(tape.between(0, width))
    ]
    tree.init(chains)
    twin.init(chains)
    check_tree(tree, twin)
    while not tape.empty:
        predictions = random_predictions(tape, len(tree), vocabulary)
        each = tape.between(1, 3)
        others = [[tape.below(vocabulary) for _ in range(1, each)] for _ in predictions]
        flat = [t for best, more in zip(predictions, others, strict=True) for t in (best, *more)]
        tree.expand(flat, each)
        twin.expand(predictions, others)
        check_tree(tree, twin)
        pool.merge(tree)
        pool_twin.merge(twin)
        check_pool(pool, pool_twin)
        key, budget = tape.below(vocabulary), tape.between(1, 16)
        assert pool.retrieve(key, budget) == pool_twin.retrieve(key, budget)
        check_pool(pool, pool_twin)
        if not tape.one_in(5):
            tree.refill()
            twin.refill()
            check_tree(tree, twin)
        if every_step_prunes or not tape.one_in(3):
            tree.step_and_prune()
            twin.step_and_prune()
            check_tree(tree, twin)
            assert not set(eos_ids) & {token for token, _ in tree.rows()}
        if every_step_prunes:
            assert all(root.height() < depth for root in twin.roots)


@on_tapes(examples=1500, length=160)
def test_retrieval_follows_the_reference_for_every_budget(tape: Tape) -> None:
    vocabulary, cap = tape.between(2, 4), tape.between(1, 40)
    pool, twin = CandidatePool(cap, 8), ReferencePool(cap, 8)
    while not tape.empty:
        tree, tree_twin = DraftTree(3, 6, 30), ReferenceTree(3, 6, 30, ())
        start = [[tape.below(vocabulary)], [tape.below(vocabulary)]]
        tree.init(start)
        tree_twin.init(start)
        for _ in range(tape.between(1, 4)):
            predictions = [tape.below(vocabulary) for _ in range(len(tree))]
            tree.expand(predictions)
            tree_twin.expand(predictions)
            pool.merge(tree)
            twin.merge(tree_twin)
    for key in range(vocabulary + 1):
        trie = twin.trie(key)
        size = 0 if trie is None else trie.size() - 1
        assert size <= cap
        for budget in range(size + 2):
            nodes = pool.retrieve(key, budget)
            assert nodes == twin.retrieve(key, budget)
            assert len(nodes) == min(size, budget)
            assert all(parent < index for index, (_, parent) in enumerate(nodes))
    check_pool(pool, twin)


def test_pool_keeps_its_caps_on_wide_and_deep_trees() -> None:
    pool = CandidatePool(max_nodes_per_key=5, max_keys=3)
    tree = DraftTree(4, 64, 60)
    tree.init([[1, 2, 3, 4, 5, 6, 7, 8, 9]])
    pool.merge(tree)
    # One chain alone is above the cap: it is cut from its end. Keys 6, 7, 8 are the newest.
    assert list(pool.dump()) == [6, 7, 8]
    assert pool.dump()[8] == [(9, [])]
    pool.clear()
    assert (pool.dump(), pool.total_nodes, pool.key_count) == ({}, 0, 0)
    tree.init([[1, 2, 3, 4, 5, 6, 7, 8, 9]])
    CandidatePool(5, 100).merge(tree)
    wide = CandidatePool(5, 100)
    wide.merge(tree)
    assert wide.dump()[1] == [(2, [(3, [(4, [(5, [(6, [])])])])])]


def test_no_more_than_width_roots_are_planted() -> None:
    tree = DraftTree(width=2, depth=6)
    tree.init([[1], [1, 7], [2], [3]])
    assert tree.rows() == [(1, -1), (2, -1)]


def test_oldest_child_of_a_key_goes_first_and_a_repeat_does_not_renew_it() -> None:
    pool = CandidatePool(max_nodes_per_key=2, max_keys=4)
    for token in (5, 6, 5, 7):
        tree = DraftTree(4, 6)
        tree.init([[1, token]])
        pool.merge(tree)
    assert pool.dump() == {1: [(6, []), (7, [])]}


def test_retrieval_prefers_the_path_that_was_merged_more_often() -> None:
    pool = CandidatePool()
    for chain in ([1, 5, 6], [1, 7, 8], [1, 7, 8], [1, 7, 9]):
        tree = DraftTree(4, 6)
        tree.init([chain])
        pool.merge(tree)
    # Below key 1: 7 has 3/4, 5 has 1/4; below 7: 8 has 2/3 (of 3/4), 9 has 1/3; below 5: 6 alone.
    assert pool.retrieve(1, 1) == [(7, -1)]
    assert pool.retrieve(1, 2) == [(7, -1), (8, 0)]
    assert pool.retrieve(1, 4)[2] == (5, -1)  # 1/4 = 1/4: 5 was discovered before 9
    assert pool.retrieve(1, 99) == [(5, -1), (6, 0), (7, -1), (8, 2), (9, 2)]


def test_prune_hands_over_to_the_earliest_child_that_is_no_root() -> None:
    tree = DraftTree(width=3, depth=2, max_nodes=96)
    tree.init([[1], [2]])
    tree.expand([2, 3])  # 1-2, 2-3
    tree.expand([4, 5, 6, 7])  # 1-(2-5, 4), 2-(3-7, 6)
    assert tree.roots() == [(1, [(2, [(5, [])]), (4, [])]), (2, [(3, [(7, [])]), (6, [])])]
    tree.step_and_prune()
    # Root 1 leaves: its child 2 is a root's token, so 4 takes over. Root 2 leaves: 3 takes over.
    assert tree.roots() == [(4, []), (3, [(7, [])])]


def test_a_refill_takes_the_newest_roots_prediction_off_it() -> None:
    tree = DraftTree(width=3, depth=6)
    tree.init([[1], [2]])
    tree.expand([8, 9])
    tree.refill()
    assert tree.roots() == [(1, [(8, [])]), (2, []), (9, [])]
    tree.expand([8, 8, -1, 1])  # 9 predicts 1, which is a root already
    tree.refill()
    assert [token for token, _ in tree.roots()] == [1, 2, 9]


def test_a_tree_without_roots_stays_empty() -> None:
    tree = DraftTree(width=2, depth=3, eos_ids=[2])
    tree.init([[2, 1]])
    tree.expand([])
    tree.refill()
    tree.step_and_prune()
    assert tree.rows() == []


def test_an_eos_leaves_the_tree_but_stays_in_the_pool() -> None:
    tree, pool = DraftTree(width=2, depth=3, eos_ids=[2]), CandidatePool()
    tree.init([[1], [3]])
    tree.expand([2, 4])
    pool.merge(tree)
    tree.step_and_prune()
    assert tree.roots() == [(1, []), (3, [(4, [])])]
    assert pool.dump() == {1: [(2, [])], 3: [(4, [])]}
