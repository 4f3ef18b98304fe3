"""The candidate pool: last token -> a trie of what followed it in the draft trees (step 5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from reference.draft_tree import DraftTree
from reference.node import Nested, Node, Row, forest_rows, merge


@dataclass(eq=False)
class Frontier:
    """A node that best-first retrieval may take next."""

    score: float
    node: Node
    parent: int


class CandidatePool:
    def __init__(self, max_nodes_per_key: int = 60, max_keys: int = 4096) -> None:
        self.max_nodes_per_key = max_nodes_per_key
        self.max_keys = max_keys
        self.tries: list[Node] = []  # from the least to the most recently used key

    def trie(self, token: int) -> Node | None:
        for trie in self.tries:
            if trie.token == token:
                return trie
        return None

    def merge(self, tree: DraftTree) -> None:
        """Merge the subtree of every inner node v, in row order, into the trie of v's token."""
        self.merge_nodes(tree.nodes())

    def merge_nodes(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            if not node.children:
                continue
            trie = self.trie(node.token)
            if trie is None:
                trie = Node(node.token)
                self.tries.append(trie)
                if len(self.tries) > self.max_keys:
                    self.tries.pop(0)
            self._touch(trie)
            merge(trie, node)
            self._trim(trie)

    def retrieve(self, token: int, budget: int) -> list[Row]:
        """At most `budget` nodes of the trie of `token`; parents come before their children."""
        trie = self.trie(token)
        if trie is None:
            return []
        self._touch(trie)
        if trie.size() - 1 <= budget:
            return [(node.token, parent) for node, parent in forest_rows(trie.children)]
        return self._best_first(trie, budget)

    def dump(self) -> dict[int, list[Nested]]:
        return {trie.token: trie.nested()[1] for trie in self.tries}

    def total_nodes(self) -> int:
        return sum(trie.size() - 1 for trie in self.tries)

    def _touch(self, trie: Node) -> None:
        self.tries.remove(trie)
        self.tries.append(trie)

    def _trim(self, trie: Node) -> None:
        while trie.size() - 1 > self.max_nodes_per_key and len(trie.children) > 1:
            trie.children.pop(0)
        while trie.size() - 1 > self.max_nodes_per_key:
            self._remove_last_in_breadth_first_order(trie)

    def _remove_last_in_breadth_first_order(self, trie: Node) -> None:
        level = [trie]
        parent = trie
        while level:
            parent = [node for node in level if node.children][-1]
            level = [child for node in level for child in node.children]
            if not any(child.children for child in level):
                break
        parent.children.pop()

    def _best_first(self, trie: Node, budget: int) -> list[Row]:
        taken: list[Row] = []
        frontier: list[Frontier] = []  # in the order of discovery

        def discover(parent: Node, score: float, row: int) -> None:
            total = sum(child.count for child in parent.children)
            frontier.extend(
                Frontier(score * child.count / total, child, row) for child in parent.children
            )

        discover(trie, 1.0, -1)
        while frontier and len(taken) < budget:
            best = frontier[0]
            for other in frontier:
                if other.score > best.score:
                    best = other
            frontier.remove(best)
            taken.append((best.node.token, best.parent))
            discover(best.node, best.score, len(taken) - 1)
        return taken
