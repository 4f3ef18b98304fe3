"""A command that torchrun started on every rank: rank 0 runs it, the others serve rank 0."""

from __future__ import annotations

import os

import typer

from ptd_engine.errors import PTDError


def join_launcher(model: str, tensor_parallel: int) -> None:
    """Return on rank 0, or where no launcher started this process. Every other rank serves rank 0
    here, reads and prints nothing, and ends with it.

    Raises:
        ConfigError: the launcher started another number of ranks.
    """
    if "RANK" not in os.environ:
        return  # before torch is imported
    from ptd_engine.tensor_parallel.ranks import check_launched, launched

    found = launched()
    if found is None or found == (0, 1):
        return
    rank, size = found
    if rank == 0:
        check_launched(tensor_parallel)
        return
    if size != tensor_parallel:
        raise typer.Exit(2)  # rank 0 says why
    from ptd_engine import hub
    from ptd_engine.tensor_parallel.worker import work

    try:
        path = hub.resolve_model(model)
    except PTDError as error:
        typer.echo(f"error: rank {rank}: {error}", err=True)
        raise typer.Exit(2) from error
    raise typer.Exit(work(str(path)))
