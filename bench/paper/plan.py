"""What is run for the report: which drafters, at which temperature, on how many prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

PAPER_TREE = "ptd:width=4,depth=6"
LOOKAHEAD, SELF_DRAFT = "lookahead", "self-draft"
# The paper's method, what it compares with, and the other methods without training. "ptd" alone is
# this engine's own choice for the device.
METHODS = (
    PAPER_TREE,
    "ptd",
    LOOKAHEAD,
    SELF_DRAFT,
    "prompt-lookup",
    "token-recycling",
    "suffix",
    "hybrid:auto_budget=false",
)
_ROOMY = "max_draft_nodes=190,max_candidate_nodes=60"  # no tree of a sweep meets the cap

Kind = Literal["methods", "width", "depth", "overhead", "branches"]
KINDS: tuple[Kind, ...] = ("methods", "width", "depth", "overhead", "branches")


@dataclass(frozen=True)
class Experiment:
    """Plain decoding and some drafters, in turns on every prompt.

    Attributes:
        kind: which part of the report it is for.
        temperature: 0 is greedy.
        drafters: labels, as on the command line.
    """

    kind: Kind
    temperature: float
    drafters: tuple[str, ...]

    @property
    def name(self) -> str:
        """What its runs are called in the file of runs."""
        return f"{self.kind}@{self.temperature:g}"


@dataclass(frozen=True)
class Scale:
    """How much is run.

    Attributes:
        limit: prompts of each set; None: all.
        sweep_limit: the same for everything but the comparison of methods.
        widths, depths: of the sweeps of PTD.
        trees: (width, depth) of the overhead figure.
        windows: (level, window, guesses) of Lookahead there.
    """

    limit: int | None
    sweep_limit: int | None
    max_new_tokens: int
    repeats: int
    widths: Sequence[int]
    depths: Sequence[int]
    trees: Sequence[tuple[int, int]]
    windows: Sequence[tuple[int, int, int]]


# The released program writes at most 1024 tokens.
FULL = Scale(
    limit=None,
    sweep_limit=20,
    max_new_tokens=1024,
    repeats=1,
    widths=(1, 2, 3, 4, 5, 6, 8),
    depths=(2, 3, 4, 5, 6, 7, 8),
    trees=((1, 2), (2, 3), (2, 5), (3, 5), (4, 6), (5, 7)),
    windows=((3, 3, 3), (4, 5, 5), (5, 7, 7), (5, 10, 10), (5, 15, 15)),
)
QUICK = Scale(
    limit=1,
    sweep_limit=1,
    max_new_tokens=40,
    repeats=1,
    widths=(1, 2, 4),
    depths=(2, 4, 6),
    trees=((1, 2), (2, 3), (4, 6)),
    windows=((3, 3, 3), (5, 7, 7), (5, 15, 15)),
)


def experiments(
    scale: Scale, methods: Sequence[str], temperature: float, kinds: Sequence[Kind] = KINDS
) -> list[Experiment]:
    """Everything the report is made of, for these methods.

    `temperature` is that of the sampled comparison; sweeps are greedy.
    """
    overhead = [tree(w, d) for w, d in scale.trees]
    overhead += [f"{LOOKAHEAD}:level={n},window={w},guesses={g}" for n, w, g in scale.windows]
    planned = [
        Experiment("methods", 0.0, tuple(methods)),
        Experiment("methods", temperature, tuple(methods)),
        Experiment("width", 0.0, tuple(tree(w, 6) for w in scale.widths)),
        Experiment("depth", 0.0, tuple(tree(4, d) for d in scale.depths)),
        Experiment("overhead", 0.0, tuple(overhead)),
        Experiment("branches", 0.0, (SELF_DRAFT, LOOKAHEAD, PAPER_TREE)),
    ]
    return [e for e in planned if e.kind in kinds]


def tree(width: int, depth: int) -> str:
    """PTD with this tree, whatever rows it takes."""
    return f"ptd:width={width},depth={depth},{_ROOMY}"
