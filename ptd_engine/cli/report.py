"""Lines and tables that several commands print."""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping
from contextlib import closing
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from ptd_engine.drafter_view import DrafterView
    from ptd_engine.outputs import Chunk, GenerationOutput


def write_json(document: Mapping[str, object]) -> None:
    """Print one JSON object on one line of standard output."""
    typer.echo(json.dumps(document, allow_nan=False))


def write_stream(chunks: Generator[Chunk, None, None]) -> GenerationOutput:
    """Print the text as it comes, end the line, and return the whole output."""
    output: GenerationOutput | None = None
    try:
        with closing(chunks) as open_chunks:
            for chunk in open_chunks:
                typer.echo(chunk.text, nl=False)
                output = chunk.output
    finally:
        typer.echo()
    assert output is not None  # the final chunk always carries it
    return output


def summary(output: GenerationOutput) -> str:
    """One line about how an output came about."""
    stats = output.stats
    return (
        f"{stats.tokens} tokens in {stats.steps} steps ({stats.decoding_efficiency:.2f} tokens a "
        f"step), {stats.tokens_per_second:.1f} tokens/s, first token after "
        f"{stats.time_to_first_token_s:.2f} s, finish: {output.finish_reason}"
    )


def write_sources(drafter: DrafterView) -> None:
    """Print to standard error what each source of the hybrid drafter was good for in a request."""
    from rich.console import Console
    from rich.table import Table

    budgets = drafter.budgets
    mean = sum(budgets) / len(budgets) if budgets else 0.0
    table = Table(title=f"Nodes by source ({mean:.1f} a step on average)")
    table.add_column("source")
    for column in ("proposed", "accepted", "alone"):
        table.add_column(column, justify="right")
    for name, counts in drafter.source_counts.items():
        table.add_row(name, *map(str, counts))
    table.caption = "alone: accepted, and no other source had it"
    Console(stderr=True).print(table)


def print_table(table: Table) -> None:
    """Print a rich table to standard output."""
    from rich.console import Console

    Console().print(table)
