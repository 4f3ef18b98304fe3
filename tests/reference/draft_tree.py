"""The progressively grown draft tree: expand, refill, step and prune (steps 4, 6 and 7)."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from reference.node import Nested, Node, Row, forest_rows


class DraftTree:
    def __init__(self, width: int, depth: int, max_nodes: int, eos_ids: Collection[int]) -> None:
        self.width = width
        self.depth = depth
        self.max_nodes = max_nodes
        self.eos_ids = frozenset(eos_ids)
        self.roots: list[Node] = []

    def init(self, chains: Sequence[Sequence[int]]) -> None:
        """Each chain becomes one subtree: first token a root, the others a chain below it.

        A chain ends before an EOS id, so that none ever enters. A chain whose first token is
        already a root is skipped; so is every chain beyond `width` roots.
        """
        self.roots = []
        for chain in chains:
            tokens: list[int] = []
            for token in chain:
                if token in self.eos_ids:
                    break
                tokens.append(token)
            if not tokens or len(self.roots) >= self.width or tokens[0] in self.root_tokens():
                continue
            level = self.roots
            for token in tokens:
                if self.size() >= self.max_nodes:
                    break
                node = Node(token)
                level.append(node)
                level = node.children

    def size(self) -> int:
        return sum(root.size() for root in self.roots)

    def root_tokens(self) -> list[int]:
        return [root.token for root in self.roots]

    def nodes(self) -> list[Node]:
        return [node for node, _ in forest_rows(self.roots)]

    def rows(self) -> list[Row]:
        return [(node.token, parent) for node, parent in forest_rows(self.roots)]

    def nested(self) -> list[Nested]:
        return [root.nested() for root in self.roots]

    def expand(self, predictions: Sequence[int], others: Sequence[Sequence[int]] = ()) -> None:
        """Append d_v below every row v; a negative prediction says v was not in the plan.

        `others` holds each row's further successors, likeliest first: when every row has appended
        d_v, every row appends its second best, and so on.
        """
        nodes = self.nodes()
        if len(nodes) != len(predictions):
            raise ValueError(f"{len(predictions)} predictions for {len(nodes)} rows")
        for node in nodes:
            node.prediction = None
        for node, token in zip(nodes, predictions, strict=True):
            if token >= 0:
                node.prediction = token
                self._append(node, token)
        for rank in range(max(map(len, others), default=0)):
            for node, tokens in zip(nodes, others, strict=True):
                if rank < len(tokens):
                    self._append(node, tokens[rank])

    def _append(self, node: Node, token: int) -> None:
        if node.child(token) is not None:
            return
        if len(node.children) >= self.width:
            return
        if self.size() >= self.max_nodes:
            return
        node.children.append(Node(token))

    def refill(self) -> None:
        """With fewer than `width` roots: the newest root's prediction becomes one more root."""
        if not self.roots or len(self.roots) >= self.width:
            return
        newest = self.roots[-1]
        token = newest.prediction
        if token is None or token in self.root_tokens():
            return
        child = newest.child(token)
        if child is not None:
            newest.children.remove(child)
            self.roots.append(child)
        elif self.size() < self.max_nodes:
            self.roots.append(Node(token))

    def step_and_prune(self) -> None:
        """Full-grown subtrees lose their root; EOS nodes go with all that hangs below them."""
        self.roots = self._without_eos(self.roots)
        tall = [root for root in self.roots if root.height() >= self.depth]
        if not tall and self.size() >= self.max_nodes:
            # A full tree cannot grow; without a step of the tallest subtree it would stay for ever.
            tall = [max(self.roots, key=lambda root: root.height())]
        for root in tall:
            self.roots.remove(root)
            for heir in root.children:
                if heir.token not in self.root_tokens():
                    self.roots.append(heir)
                    break

    def _without_eos(self, nodes: list[Node]) -> list[Node]:
        kept = [node for node in nodes if node.token not in self.eos_ids]
        for node in kept:
            node.children = self._without_eos(node.children)
        return kept
