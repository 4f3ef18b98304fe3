"""The parts of the report: tables of numbers, made of finished units and nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

Cell = str | float | int | None


@dataclass(frozen=True)
class Section:
    """A table, what it says, and perhaps a plot of it.

    Attributes:
        name: of the part in the document and of its plot's file.
        title: its heading.
        note: how to read it.
        columns: (heading, format of its numbers, "" for text).
        rows: the numbers, unrounded; None is an empty cell.
    """

    name: str
    title: str
    note: str
    columns: Sequence[tuple[str, str]]
    rows: Sequence[Sequence[Cell]]

    def cells(self) -> list[list[str]]:
        """The rows as they are shown."""
        return [
            [show(value, form) for value, (_, form) in zip(row, self.columns, strict=True)]
            for row in self.rows
        ]

    def column(self, heading: str) -> list[Any]:
        """The values of one column."""
        index = [name for name, _ in self.columns].index(heading)
        return [row[index] for row in self.rows]

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "name": self.name,
            "title": self.title,
            "columns": [name for name, _ in self.columns],
            "rows": [list(row) for row in self.rows],
        }


def show(value: Cell, form: str) -> str:
    """A cell's text: numbers by the column's format, words as they are, nothing for None."""
    if value is None:
        return ""
    return value if isinstance(value, str) else format(value, form)


def numbers(headings: Iterable[str], form: str) -> list[tuple[str, str]]:
    """Columns of one format."""
    return [(heading, form) for heading in headings]
