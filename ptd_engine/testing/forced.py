"""Drafters that put given candidates before the verifier."""

from __future__ import annotations

from collections.abc import Sequence

from ptd_engine import _core

Tree = Sequence[tuple[int, int]]
"""Candidates as (token, index of the parent in the sequence; -1 is the root)."""


def chain(*tokens: int) -> list[tuple[int, int]]:
    """The tree in which every token follows the one before."""
    return [(token, index - 1) for index, token in enumerate(tokens)]


class FixedTrees(_core.Drafter):
    """Step i of a request proposes trees[i], the last one from then on.

    Attributes:
        steps: steps of this request so far.
        accepted: the accepted rows of each step, over all requests.
        new_tokens: what each step added to the output, over all requests.
    """

    def __init__(self, *trees: Tree) -> None:
        super().__init__()
        self.trees = trees
        self.steps = 0
        self.accepted: list[list[int]] = []
        self.new_tokens: list[list[int]] = []

    def needs(self) -> _core.DrafterNeeds:
        """Room for the largest tree."""
        return _core.DrafterNeeds(max(len(tree) for tree in self.trees))

    def begin(self, prompt: list[int]) -> None:
        """Start over with the first tree."""
        self.steps = 0

    def propose(self, committed: list[int], tree: _core.TreeBuilder) -> None:
        """Add the step's tree; what hangs below a row that found no room is left out."""
        _add(tree, self.trees[min(self.steps, len(self.trees) - 1)])

    def observe(self, outcome: _core.StepOutcome) -> None:
        """Note what became of the tree."""
        self.steps += 1
        self.accepted.append(outcome.accepted)
        self.new_tokens.append(outcome.new_tokens)


class FixedBlocks(_core.Drafter):
    """Knows the output, and has the verifier accept it in blocks of given sizes.

    Below every node of a block stands, in front of the right continuation, `decoys` wrong ones: so
    accepted paths are scattered over the rows of a step.
    """

    def __init__(
        self, output: Sequence[int], blocks: Sequence[int], *, decoys: Sequence[int] = ()
    ) -> None:
        """Force an output.

        Args:
            output: what plain decoding generates after the prompt.
            blocks: candidates that step i gets accepted, from the first again after the last.
            decoys: wrong tokens.
        """
        super().__init__()
        self._output = list(output)
        self._blocks = tuple(blocks)
        self._decoys = tuple(decoys)
        self._prompt_len = 0
        self._step = 0

    def needs(self) -> _core.DrafterNeeds:
        """Room for the largest block and its decoys."""
        return _core.DrafterNeeds(min(255, max(self._blocks) * (1 + len(self._decoys))))

    def begin(self, prompt: list[int]) -> None:
        """Start over with the first block."""
        self._prompt_len, self._step = len(prompt), 0

    def propose(self, committed: list[int], tree: _core.TreeBuilder) -> None:
        """Add the next block of the output."""
        done = len(committed) - self._prompt_len
        block = self._output[done : done + self._blocks[self._step % len(self._blocks)]]
        rows: list[tuple[int, int]] = []
        parent = -1
        for token in block:
            rows += [(decoy, parent) for decoy in self._decoys if decoy != token]
            rows.append((token, parent))
            parent = len(rows) - 1
        _add(tree, rows)

    def observe(self, outcome: _core.StepOutcome) -> None:
        """Count the step."""
        self._step += 1


def _add(tree: _core.TreeBuilder, rows: Tree) -> None:
    placed: list[int] = []
    for token, parent in rows:
        above = 0 if parent < 0 else placed[parent]
        placed.append(-1 if above < 0 else tree.add_candidate(above, token))
