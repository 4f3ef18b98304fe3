"""A rank other than 0, from its start to its end: `python -m ptd_engine.tensor_parallel`, or any
program under torchrun that loads a model with tensor_parallel.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from dataclasses import replace

from ptd_engine.errors import DistributedError
from ptd_engine.tensor_parallel.follower import follow
from ptd_engine.tensor_parallel.group import Group, report
from ptd_engine.tensor_parallel.ranks import device_of, meet
from ptd_engine.tensor_parallel.settings import Settings, load_part

SETTINGS = "settings"  # where rank 0 leaves them in the store


def work(path: str | None = None) -> int:
    """Load this rank's part, serve rank 0 and return the status to exit with.

    Args:
        path: the model as this machine has it; None: where rank 0 has it.
    """
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    local_rank = int(os.environ.get("LOCAL_RANK", rank))
    try:
        store = meet()
        settings = Settings.from_json(store.get(SETTINGS).decode())
        report(store, "here", rank)
    except (DistributedError, RuntimeError) as error:
        return _say(rank, f"rank 0 is gone: {error}")
    device = device_of(settings.device, local_rank)
    try:
        group = Group(store, rank, size, device, settings.timeout_s, local=path is None)
    except DistributedError as error:
        return _say(rank, str(error))
    try:
        part = load_part(settings if path is None else replace(settings, path=path), rank, device)
        _leave_signals_to_rank_0()
        report(store, "ready", rank)
        follow(group, part)
    except DistributedError as error:
        return _say(rank, str(error))
    except Exception as error:
        try:
            report(store, "error", rank, f"{type(error).__name__}: {error}")
        except RuntimeError:
            return _say(rank, f"{error!r}, and rank 0 is gone")
        raise
    finally:
        group.leave()
    return 0


def _leave_signals_to_rank_0() -> None:
    """Terminals, torchrun and systemd tell all processes to end. From now on rank 0 decides when:
    the request that runs may still need this rank, which ends with rank 0 in any case.
    """
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)


def _say(rank: int, reason: str) -> int:
    sys.stderr.write(f"ptd_engine: rank {rank} ends: {reason}\n")
    return 1
