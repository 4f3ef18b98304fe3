"""The two forms of a result: a table for people and a JSON document for programs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from rich.console import Console, JustifyMethod
from rich.markup import escape
from rich.table import Table

from bench.environment import ReadBandwidth, git_state, gpu, machine, versions

_WIDTH = 250  # columns: a narrow terminal wraps lines, but no cell is cut


@dataclass(frozen=True)
class TitledTable:
    """A table and the line above it (rich would wrap a title to the table's width)."""

    title: str
    table: Table


@dataclass(frozen=True)
class Document:
    """One run of one benchmark.

    Attributes:
        benchmark: its name.
        correct: every result that was timed was right.
        settings: what was asked for.
        results: what was measured; without times for what was wrong.
        tables: the same for people, each with its title.
        notes: lines printed below the tables.
        device: of the model; None where none is involved.
        bandwidth: the CPU's, if the benchmark has measured it.
    """

    benchmark: str
    correct: bool
    settings: dict[str, Any]
    results: dict[str, Any]
    tables: Sequence[TitledTable]
    notes: Sequence[str] = ()
    device: torch.device | None = None
    bandwidth: ReadBandwidth | None = None

    def as_dict(self) -> dict[str, Any]:
        """The JSON document."""
        return {
            "benchmark": self.benchmark,
            "correct": self.correct,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "versions": versions(),
            "machine": machine(self.bandwidth),
            "gpu": gpu(self.device),
            "git": git_state(),
            "settings": self.settings,
            "results": self.results,
        }


def emit(document: Document, out: Path | None) -> None:
    """Print the tables, then the JSON document as the last line; write it to `out` as well."""
    console = Console(width=_WIDTH, highlight=False)
    for titled in document.tables:
        console.print(titled.title, markup=False)
        console.print(titled.table)
    for note in document.notes:
        console.print(note, markup=False, soft_wrap=True)
    line = json.dumps(document.as_dict(), allow_nan=False)
    print(line, flush=True)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(line + "\n", encoding="utf-8")


def make_table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], text_columns: int = 1
) -> TitledTable:
    """A table whose first `text_columns` columns are text and whose others are numbers."""
    table = Table()
    for index, column in enumerate(columns):
        justify: JustifyMethod = "left" if index < text_columns else "right"
        table.add_column(column, justify=justify, no_wrap=True)
    for row in rows:
        table.add_row(*map(escape, row))
    return TitledTable(title, table)
