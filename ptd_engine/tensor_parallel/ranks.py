"""The processes of the ranks: started here, or by torchrun."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous

from ptd_engine.errors import ConfigError, DistributedError

_END_S = 5.0  # how long a rank that was told to stop may take
_LAUNCHER = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
LOAD_S = 1800.0  # how long a rank may load its part


def launched() -> tuple[int, int] | None:
    """This process's rank and their number where torchrun started it, else None."""
    if any(name not in os.environ for name in _LAUNCHER):
        return None
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def check_launched(ranks: int) -> int | None:
    """This process's rank where torchrun started it, else None.

    Raises:
        ConfigError: torchrun started another number of ranks.
    """
    found = launched()
    if found is None:
        return None
    rank, size = found
    if size != ranks:
        raise ConfigError.for_field(
            "tensor_parallel", ranks, f"{size} here, as many as torchrun has started"
        )
    return rank


def meet() -> Any:
    """The store that the environment names: torchrun's, or that of the process that started this.

    Raises:
        DistributedError: nobody answers there.
    """
    try:
        store, _, _ = next(rendezvous("env://", timeout=timedelta(seconds=LOAD_S)))
    except (RuntimeError, ValueError) as error:
        raise DistributedError(f"No rank 0 answers where the environment says: {error}") from error
    return store


class LocalRanks:
    """Ranks 1 and up as processes on this machine; rank 0 is the caller."""

    def __init__(self, ranks: int, num_threads: int) -> None:
        """Start them.

        Args:
            num_threads: of each on a CPU.
        """
        self.store: Any = TCPStore(
            "127.0.0.1",
            0,
            is_master=True,
            wait_for_workers=False,
            timeout=timedelta(seconds=LOAD_S),
        )
        shared = {
            **os.environ,
            "WORLD_SIZE": str(ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self.store.port),
            "OMP_NUM_THREADS": str(num_threads),
        }
        command = [sys.executable, "-m", "ptd_engine.tensor_parallel"]
        self.processes: Sequence[subprocess.Popen[bytes]] = [
            subprocess.Popen(
                command,
                env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # a terminal's Ctrl-C is rank 0's
            )
            for rank in range(1, ranks)
        ]

    def ended(self) -> list[str]:
        """What is to say about those that ended."""
        codes = {rank: process.poll() for rank, process in enumerate(self.processes, 1)}
        return [
            f"the process of rank {rank} ended with status {code}"
            for rank, code in codes.items()
            if code is not None
        ]

    def end(self, *, kill: bool) -> None:
        """Wait for their end, and force it where it does not come, or at once."""
        for process in self.processes:
            if kill:
                process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_END_S)
                continue
            process.kill()
            process.wait()


def device_of(kind: str, local_rank: int) -> torch.device:
    """The device of a rank on its machine."""
    return torch.device(kind, local_rank) if kind == "cuda" else torch.device(kind)
