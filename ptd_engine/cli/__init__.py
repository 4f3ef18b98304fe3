"""The `ptd-engine` command.

Importing it, and `--help`, brings neither torch nor transformers: each command imports them itself.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typer import Typer

__all__ = ["create_app", "main"]

INTERRUPT_STATUS = 130  # 128 + SIGINT, as shells report it


def create_app() -> Typer:
    """Build the application with all its commands."""
    from ptd_engine.cli import app

    return app.create_app()


def main() -> None:
    """Run the command line and exit with its status; Ctrl-C ends it quietly from the start."""
    try:
        from ptd_engine.cli import app  # here: its imports take long enough to be interrupted

        app.main()
    except KeyboardInterrupt:
        sys.stderr.write("\ninterrupted\n")
        sys.exit(INTERRUPT_STATUS)
