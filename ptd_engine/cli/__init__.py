"""The `ptd-engine` command.

Importing it, and `--help`, brings neither torch nor transformers: each command imports them itself.
"""

from ptd_engine.cli.app import create_app, main

__all__ = ["create_app", "main"]
