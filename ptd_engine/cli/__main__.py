"""`python -m ptd_engine.cli`: the `ptd-engine` command."""

from ptd_engine.cli import main

main()
