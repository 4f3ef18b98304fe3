"""See `command`."""

from ptd_engine.distributed.serve.command import main

main()
