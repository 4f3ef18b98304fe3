"""The candidate pool in C++ and the literal one in Python, through any interleaving of calls."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from reference.candidate_pool import CandidatePool as ReferencePool
from reference.draft_tree import DraftTree as ReferenceTree

from fuzz.choices import Choices
from ptd_engine._core import CandidatePool, DraftTree


class Pair:
    """A draft tree and its twin."""

    def __init__(self, width: int, depth: int, max_nodes: int) -> None:
        self.width, self.depth = width, depth
        self.tree = DraftTree(width, depth, max_nodes)
        self.twin = ReferenceTree(width, depth, max_nodes, [])

    def change(self, choices: Choices, vocabulary: int) -> None:
        match choices.below(4):
            case 0:
                chains = [
                    [choices.below(vocabulary) for _ in range(1 + choices.below(self.depth))]
                    for _ in range(choices.below(self.width + 1))
                ]
                self.tree.init(chains)
                self.twin.init(chains)
            case 1 | 2:
                best = [choices.below(vocabulary + 1) - 1 for _ in range(len(self.tree))]
                self.tree.expand(best, 1)
                self.twin.expand(best, [[] for _ in best])
                if choices.below(2):
                    self.tree.refill()
                    self.twin.refill()
            case _:
                self.tree.step_and_prune()
                self.twin.step_and_prune()
        assert self.tree.rows() == self.twin.rows()


@settings(settings.get_profile("ci"), max_examples=600)
@given(data=st.binary(min_size=40, max_size=300))
def test_any_interleaving_leaves_both_alike(data: bytes) -> None:
    choices = Choices(data)
    vocabulary = 1 + choices.below(12)
    caps = (1 + choices.below(12), 1 + choices.below(6))
    pool, twin = CandidatePool(*caps), ReferencePool(*caps)
    sizes = (1 + choices.below(4), 1 + choices.below(6), 1 + choices.below(24))
    pairs = [Pair(*sizes) for _ in range(3)]  # as three requests that share a pool
    for _ in range(60):
        pair = choices.one_of(pairs)
        match choices.below(6):
            case 0 | 1 | 2:
                pair.change(choices, vocabulary)
                continue
            case 3:
                pool.merge(pair.tree)
                twin.merge(pair.twin)
            case 4:
                key, budget = choices.below(vocabulary + 1), choices.below(20)
                assert pool.retrieve(key, budget) == (twin.retrieve(key, budget) if budget else [])
            case _:
                if choices.below(8) == 7:
                    pool.clear()
                    twin.tries.clear()
        assert list(pool.dump().items()) == list(twin.dump().items())  # in the order of last use
        assert (pool.total_nodes, pool.key_count) == (twin.total_nodes(), len(twin.tries))
