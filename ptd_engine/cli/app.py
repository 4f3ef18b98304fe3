"""The command tree, and what every command does with errors."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import ptd_engine
from ptd_engine.cli import INTERRUPT_STATUS
from ptd_engine.cli.chat import chat
from ptd_engine.cli.cmake_dir import cmake_dir
from ptd_engine.cli.demo import demo
from ptd_engine.cli.doctor import doctor
from ptd_engine.cli.generate import generate
from ptd_engine.cli.plan import plan
from ptd_engine.cli.serve import serve
from ptd_engine.cli.verify import verify
from ptd_engine.errors import PTDError

ERROR_STATUS = 2  # the caller's mistake; 1 is a result that is not right (verify, demo)
OUTPUT_STATUS = 1  # a result that nobody could read
# What writing to standard output fails with. A pipe whose reader left ends the command silently.
_OUTPUT_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)


class _Commands(TyperGroup):
    """Turns errors that a user can act on into one line, and Ctrl-C into its usual status."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except PTDError as error:
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(ERROR_STATUS) from error
        except KeyboardInterrupt as error:
            typer.echo("\ninterrupted", err=True)
            raise typer.Exit(INTERRUPT_STATUS) from error


def create_app() -> typer.Typer:
    """Build the application with all its commands."""
    app = typer.Typer(
        name="ptd-engine",
        cls=_Commands,
        help="Lossless batch-1 speculative decoding: Progressive Tree Drafting for Llama and Qwen.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,  # a traceback is a bug report: plain and whole
        rich_markup_mode=None,  # plain help: importing rich would double its time
    )
    app.callback()(_root)
    for command in (generate, verify, chat, serve, doctor, plan, demo):
        app.command()(command)
    return app


def main() -> None:
    """Run the command line and exit with its status; output that cannot be written is an error."""
    # Read when torch is imported. Spinning OpenMP threads make small operations ten times slower as
    # soon as the machine has other work; a setting of the user's own wins.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    if sys.stdout is None:  # closed by the caller: echo would drop every result in silence
        typer.echo("error: standard output is closed: redirect it to a file or a pipe.", err=True)
        sys.exit(OUTPUT_STATUS)
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:  # a terminal that cannot show a character shall not end a run
            reconfigure(errors="backslashreplace")
    try:
        create_app()(prog_name="ptd-engine")
    except OSError as error:
        if error.filename is not None or error.errno not in _OUTPUT_ERRORS:
            raise
        # What is still buffered would fail once more when the interpreter ends.
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        with contextlib.suppress(OSError):
            typer.echo(f"error: the output cannot be written: {error.strerror}.", err=True)
        sys.exit(OUTPUT_STATUS)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ptd-engine {ptd_engine.__version__}")
        raise typer.Exit


def _show_cmake_dir(wanted: bool) -> None:
    if wanted:
        try:
            typer.echo(cmake_dir())
        except PTDError as error:  # before any command, so nobody above turns it into a line
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(ERROR_STATUS) from error
        raise typer.Exit


def _root(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", callback=_show_version, is_eager=True),
    ] = False,
    cmake_dir: Annotated[
        bool,
        typer.Option(
            "--cmake-dir",
            help="Print the folder of the CMake package, for -Dptd_DIR=...",
            callback=_show_cmake_dir,
            is_eager=True,
        ),
    ] = False,
) -> None:
    # The docstring would replace the application's help.
    return
