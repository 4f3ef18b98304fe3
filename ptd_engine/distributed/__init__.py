"""Many engines at once; see `ptd_engine.distributed.serve`."""
