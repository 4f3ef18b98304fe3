"""What happens within an output: texts, branches, acceptance, time."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from bench.common import ratio
from bench.paired import PLAIN
from bench.paper.execute import OTHER_SEED, RECURSIVE
from bench.paper.likeness import bleu, rouge_l
from bench.paper.sections import Cell, Section, numbers
from bench.paper.similarity import NGRAMS
from bench.paper.speed import labels_of
from bench.paper.store import Unit
from ptd_engine.metrics import GenerationStats

_BINS = 8  # of an output's length
_DEPTHS = 8


def _drafted(units: Sequence[Unit]) -> list[str]:
    """Drafters all of whose outputs are plain decoding's."""
    labels = [label for label in labels_of(units) if label != PLAIN]
    return [label for label in labels if not any(unit.differs(label) for unit in units)]


def _stats(units: Sequence[Unit], label: str) -> GenerationStats:
    return GenerationStats.merge([unit.prompt.runs[label][0].stats for unit in units])


def quality_section(units: Sequence[Unit]) -> Section:
    """Texts against those of plain decoding."""
    extra = [x for x in (RECURSIVE, OTHER_SEED) if all(x in unit.texts for unit in units)]
    rows: list[list[Cell]] = []
    for label in [*(name for name in labels_of(units) if name != PLAIN), *extra]:
        pairs = [(unit.texts.get(label, unit.texts[PLAIN]), unit.texts[PLAIN]) for unit in units]
        same = sum(
            text == plain if label in extra else not unit.differs(label)
            for unit, (text, plain) in zip(units, pairs, strict=True)
        )
        scores = [statistics.fmean(score(*p) for p in pairs) for score in (rouge_l, bleu)]
        rows.append([label, ratio(same, len(units)), *scores])
    return Section(
        "quality",
        "Table 3: texts against plain decoding's",
        "Sampled; drafting is coupled to the seed, so identical is the share of outputs with the "
        "same tokens. Recursive verification follows the same law with other random numbers, so "
        "it is to be as far from plain decoding as another seed is, not nearer and not farther.",
        [("method", ""), ("identical", ".3f"), *numbers(("ROUGE-L", "BLEU"), ".3f")],
        rows,
    )


def branches_section(units: Sequence[Unit]) -> Section:
    """How much draft rows repeat each other, along an output."""
    length = max(
        (len(s) for unit in units for by_n in unit.similarity.values() for s in by_n.values()),
        default=0,
    )
    width = max(1, -(-length // _BINS))
    rows: list[list[Cell]] = []
    for label in dict.fromkeys(label for unit in units for label in unit.similarity):
        for begin in range(0, length, width):
            shares: list[Cell] = []
            for n in NGRAMS:
                found = [
                    value
                    for unit in units
                    if label in unit.similarity
                    for value in unit.similarity[label][str(n)][begin : begin + width]
                ]
                shares.append(statistics.fmean(found) if found else None)
            if shares != [None] * len(NGRAMS):
                rows.append([label, begin, *shares])
    return Section(
        "branches",
        "Figure 2, right: how much the branches of a draft repeat each other",
        "Share of the draft rows of a step whose token (n-gram with the rows before it in its "
        "branch) another row of that step has already, from this step on.",
        [
            *(("method", ""), ("from step", "d")),
            *numbers((f"{n}-grams" if n > 1 else "tokens" for n in NGRAMS), ".3f"),
        ],
        rows,
    )


def depth_section(units: Sequence[Unit]) -> Section:
    """Acceptance by depth."""
    rows: list[list[Cell]] = []
    for label in _drafted(units):
        shares = list(_stats(units, label).acceptance_by_depth[:_DEPTHS])
        rows.append([label, *shares, *[0.0] * (_DEPTHS - len(shares))])
    return Section(
        "acceptance",
        "Acceptance by depth",
        "Share of steps that accepted at least so many candidates.",
        [("method", ""), *numbers(map(str, range(1, _DEPTHS + 1)), ".3f")],
        rows,
    )


def position_section(units: Sequence[Unit], max_new_tokens: int) -> Section:
    """Tokens a step by where in the output the step begins."""
    width = -(-max_new_tokens // _BINS)
    begins = range(0, max_new_tokens, width)
    rows: list[list[Cell]] = []
    for label in _drafted(units):
        steps = [0] * len(begins)
        tokens = [0] * len(begins)
        for unit in units:
            position = 0
            for count in unit.prompt.runs[label][0].step_tokens:
                steps[position // width] += 1
                tokens[position // width] += count
                position += count
        shown: list[Cell] = [t / s if s else None for t, s in zip(tokens, steps, strict=True)]
        rows.append([label, *shown])
    return Section(
        "position",
        "Tokens a step along the output",
        "Mean tokens of the steps that begin from this output token on.",
        [("method", ""), *numbers(map(str, begins), ".2f")],
        rows,
    )


def time_section(units: Sequence[Unit]) -> Section:
    """Where the time of a step goes, by the rows of a step."""
    parts: tuple[Callable[[GenerationStats], float], ...] = (
        lambda s: s.plan_time_s,
        lambda s: s.forward_time_s,
        lambda s: s.commit_time_s,
    )
    by_rows: list[tuple[float, list[Cell]]] = []
    for label in labels_of(units):
        own = [u for u in units if label in u.prompt.runs]
        if not any(unit.differs(label) for unit in own):
            stats = _stats(own, label)
            rows = 1 + stats.mean_draft_nodes + stats.mean_candidate_nodes
            times = [1e3 * ratio(part(stats), stats.steps) for part in parts]
            by_rows.append((rows, [label, rows, *times]))
    return Section(
        "time",
        "The time of a step by its rows",
        "Milliseconds a step. Retrieval is looking up candidates and laying the step out, update "
        "is verification and the growth of tree and pool.",
        [("method", ""), ("rows", ".1f"), *numbers(("retrieval", "forward", "update"), ".3f")],
        [row for _, row in sorted(by_rows, key=lambda pair: pair[0])],
    )
