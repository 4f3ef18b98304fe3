"""`python -m ptd_engine` is the `ptd-engine` command."""

from ptd_engine.cli import main

main()
