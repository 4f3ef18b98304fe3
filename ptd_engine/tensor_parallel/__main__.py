"""A rank other than 0, as `LLM.from_pretrained(tensor_parallel=...)` starts it."""

import sys

from ptd_engine.tensor_parallel.worker import work

sys.exit(work())
