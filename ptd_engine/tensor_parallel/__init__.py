"""Tensor parallelism: one model, one request, several ranks.

Rank 0 owns the session, the drafter and every decision. The others hold a part of the weights and
of the cache and do what they are told: plans are broadcast, logits come back. See
docs/distributed.md.
"""

from ptd_engine.tensor_parallel.leader import LeaderRunner
from ptd_engine.tensor_parallel.partition import Partition, check_ranks
from ptd_engine.tensor_parallel.rank_zero import DEFAULT_TIMEOUT_S, TensorParallel, start

__all__ = [
    "DEFAULT_TIMEOUT_S",
    "LeaderRunner",
    "Partition",
    "TensorParallel",
    "check_ranks",
    "start",
]
