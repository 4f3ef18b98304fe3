"""The one tree type of the reference: nested nodes, children in insertion order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

Nested = tuple[int, list["Nested"]]  # (token, children)
Row = tuple[int, int]  # (token, row of the parent, or -1)


@dataclass(eq=False)
class Node:
    """A token and its continuations.

    `count` is read by the candidate pool only (how often the node was merged), `prediction` by
    the draft tree only (what the model said after this node in the step under way).
    """

    token: int
    children: list[Node] = field(default_factory=list)
    count: int = 1
    prediction: int | None = None

    def child(self, token: int) -> Node | None:
        for candidate in self.children:
            if candidate.token == token:
                return candidate
        return None

    def preorder(self) -> Iterator[Node]:
        """This node, then each child's subtree in insertion order."""
        yield self
        for candidate in self.children:
            yield from candidate.preorder()

    def size(self) -> int:
        return sum(1 for _ in self.preorder())

    def height(self) -> int:
        """Hops to the deepest leaf; a leaf has height 0."""
        if not self.children:
            return 0
        return 1 + max(candidate.height() for candidate in self.children)

    def copy(self) -> Node:
        """A copy of the subtree in which every count is 1."""
        return Node(self.token, [candidate.copy() for candidate in self.children])

    def nested(self) -> Nested:
        return (self.token, [candidate.nested() for candidate in self.children])

    def counted(self) -> tuple[int, int, list]:
        """(token, count, children): the form that shows merge counts."""
        return (self.token, self.count, [candidate.counted() for candidate in self.children])


def forest_rows(roots: list[Node]) -> list[tuple[Node, int]]:
    """Every node with the row of its parent (-1 for a root), in depth-first pre-order."""
    rows: list[tuple[Node, int]] = []

    def visit(node: Node, parent: int) -> None:
        row = len(rows)
        rows.append((node, parent))
        for candidate in node.children:
            visit(candidate, row)

    for root in roots:
        visit(root, -1)
    return rows


def merge(into: Node, other: Node) -> None:
    """`merge(A, B)` for two trees whose roots hold the same token.

    For each child of B's root: if A's root has it, merge recursively, else attach the whole
    subtree (a copy, appended last).
    """
    for theirs in other.children:
        ours = into.child(theirs.token)
        if ours is None:
            into.children.append(theirs.copy())
        else:
            ours.count += 1
            merge(ours, theirs)
