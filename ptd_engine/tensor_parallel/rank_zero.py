"""A model over several ranks, from rank 0's side."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from ptd_engine.errors import ConfigError, DistributedError, UnavailableError
from ptd_engine.model import CausalLM
from ptd_engine.tensor_parallel.commands import Command, Kind, send
from ptd_engine.tensor_parallel.group import Group, refuse_second, wait_for_all
from ptd_engine.tensor_parallel.leader import LeaderRunner
from ptd_engine.tensor_parallel.parallel_ops import join_ranks
from ptd_engine.tensor_parallel.ranks import LOAD_S, LocalRanks, check_launched, device_of, meet
from ptd_engine.tensor_parallel.settings import Settings, check, load_part
from ptd_engine.tensor_parallel.worker import SETTINGS, work

DEFAULT_TIMEOUT_S = 60.0


class TensorParallel:
    """Rank 0 of a model that is cut over several ranks.

    Attributes:
        model: rank 0's part; only a `LeaderRunner` of `make_runner` may run it.
        group: what joins the ranks.
        settings: what every rank has loaded.
    """

    def __init__(self, settings: Settings) -> None:
        """Start the ranks and load every part.

        Where torchrun has started this program, its ranks are taken: on every rank but 0 this call
        serves rank 0 until it ends, and then ends the process (SystemExit).

        Raises:
            ConfigError, CheckpointError: what cannot be loaded, or cannot be cut.
            UnavailableError: fewer GPUs than ranks.
            DistributedError: a rank did not start or could not load its part.
        """
        check(settings)
        refuse_second(settings.ranks)
        rank = check_launched(settings.ranks)
        _check_devices(settings, rank)
        if rank:
            sys.exit(work(settings.path))
        self._local: LocalRanks | None = None
        if rank is None:
            threads = settings.num_threads or max(1, torch.get_num_threads() // settings.ranks)
            self._local = LocalRanks(settings.ranks, threads)
            if settings.num_threads is None and settings.device == "cpu":
                settings = replace(settings, num_threads=threads)
        self.settings = settings
        try:
            self.group, self.model = self._join(settings)
        except BaseException:
            if self._local is not None:
                self._local.end(kill=True)
            raise
        atexit.register(self.close)

    def _join(self, settings: Settings) -> tuple[Group, CausalLM]:
        local = self._local
        store = meet() if local is None else local.store
        store.set(SETTINGS, settings.to_json())
        device = device_of(settings.device, int(os.environ.get("LOCAL_RANK", 0)))
        size, timeout = settings.ranks, settings.timeout_s
        ended: Callable[[], list[str]] = list if local is None else local.ended
        wait_for_all(store, "here", size, LOAD_S, ended)  # the timeout is not for their start
        group = Group(store, 0, size, device, timeout, local=local is not None)
        try:
            group.watch(ended)
            part = load_part(settings, 0, device)
            wait_for_all(store, "ready", size, LOAD_S, ended)
            return group, join_ranks(part, group)
        except BaseException:
            group.leave()
            raise

    def make_runner(
        self,
        model: CausalLM,
        *,
        max_seq_len: int,
        max_nodes: int,
        top_k: int = 0,
        vocab_limit: int | None = None,
    ) -> LeaderRunner:
        """A runner over all ranks; arguments as for `EagerRunner`."""
        return LeaderRunner(
            self.group,
            model,
            max_seq_len=max_seq_len,
            max_nodes=max_nodes,
            top_k=top_k,
            vocab_limit=vocab_limit,
        )

    @property
    def processes(self) -> list[int]:
        """Ids of the processes of ranks 1 and up, where this one has started them."""
        return [] if self._local is None else [process.pid for process in self._local.processes]

    def close(self) -> None:
        """End the other ranks; a second call does nothing."""
        atexit.unregister(self.close)
        whole = not self.group.broken
        if whole:
            with contextlib.suppress(DistributedError), self.group.turn:
                send(self.group, Command(Kind.STOP))
        if self._local is not None:
            self._local.end(kill=not whole)
        self.group.leave()


def start(
    path: Path,
    ranks: int,
    *,
    dtype: str,
    device: torch.device,
    kernels: str,
    max_seq_len: int,
    num_threads: int | None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> TensorParallel:
    """Load a model over `ranks` ranks; see `TensorParallel` and `load_model`.

    Raises:
        ConfigError: a single GPU is named.
    """
    if ":" in str(device):
        raise ConfigError.for_field(
            "device", str(device), f"{device.type!r} with tensor_parallel: a device a rank"
        )
    settings = Settings(
        path=str(path.resolve()),
        ranks=ranks,
        device=device.type,
        dtype=dtype,
        kernels=kernels,
        num_threads=num_threads,
        max_seq_len=max_seq_len,
        timeout_s=timeout_s,
    )
    return TensorParallel(settings)


def _check_devices(settings: Settings, rank: int | None) -> None:
    if settings.device != "cuda":
        return
    here = settings.ranks if rank is None else int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    found = torch.cuda.device_count()
    if here > found:
        raise UnavailableError.for_field(
            "tensor_parallel", settings.ranks, f"at most {found}, the GPUs that torch sees here"
        )
