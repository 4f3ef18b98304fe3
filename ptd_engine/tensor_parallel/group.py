"""The ranks of one model: collectives that end in an error, never in a wait without end.

Commands travel in a group of their own, since a rank may wait for the next request as long as it
likes; whatever follows a command has to come within the timeout. A rank that ends closes its
connections, at which every other rank's collective errs at once.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ptd_engine.errors import ConfigError, DistributedError

_IDLE = timedelta(days=3650)  # how long a rank waits for a command
_REASONS_S = 1.0  # how long rank 0 waits for the reason of a rank that broke off
_POLL_S = 0.02


class Turn:
    """From a command to the end of what follows it, in one thread, and never broken off by Ctrl-C:
    the other ranks would wait for the rest. The interrupt comes when the turn ends.

    Where anything else breaks it off, the ranks are no longer in step, and the group is broken.
    """

    def __init__(self, group: Group) -> None:
        self._group = group
        self._lock = threading.RLock()
        self._depth = 0
        self._handler: Any = None  # of SIGINT, while it is held back
        self._interrupted = False

    def __enter__(self) -> None:
        main = threading.current_thread() is threading.main_thread()
        if main and self._handler is None and callable(signal.getsignal(signal.SIGINT)):
            self._interrupted = False
            self._handler = signal.signal(signal.SIGINT, self._note)
        self._lock.acquire()
        self._depth += 1

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        if kind is not None and not self._group.broken:
            self._group.part(f"{kind.__name__} on rank 0 in the middle of a step")
        self._depth -= 1
        over = self._depth == 0
        self._lock.release()
        if over and threading.current_thread() is threading.main_thread() and self._handler:
            handler, self._handler = self._handler, None
            signal.signal(signal.SIGINT, handler)
            if self._interrupted and kind is None:
                handler(signal.SIGINT, None)

    def _note(self, _signal: int, _frame: object) -> None:
        self._interrupted = True


class Group:
    """What a rank does together with the others. Of a process there is one at most.

    Attributes:
        rank, size: this rank's number, and how many there are.
        device: where this rank's tensors are.
        turn: held by whoever sends a command, until everything that follows it is done; see `Turn`.
    """

    def __init__(
        self,
        store: Any,
        rank: int,
        size: int,
        device: torch.device,
        timeout_s: float,
        *,
        local: bool,
    ) -> None:
        """Meet the other ranks.

        Args:
            store: a key-value store of torch.distributed that all ranks share.
            timeout_s: how long the other ranks may be late in a collective.
            local: all ranks are on this machine: nothing listens outside of it.

        Raises:
            DistributedError: not all ranks came.
        """
        self.rank, self.size, self.device = rank, size, device
        self.turn = Turn(self)
        self._store = store
        self._numbers = itertools.count()
        self._broken: str | None = None
        self._ended: Callable[[], list[str]] = list
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        with _loopback() if local else contextlib.nullcontext():
            try:
                dist.init_process_group(
                    backend,
                    store=store,
                    rank=rank,
                    world_size=size,
                    timeout=timedelta(seconds=timeout_s),
                )
                # Each rank has its own limit: rank 0 does not send to a stopped one for ever.
                waits = _IDLE if rank else timedelta(seconds=timeout_s)
                self._commands = dist.new_group(timeout=waits, backend="gloo")
            except RuntimeError as error:
                raise DistributedError(
                    f"The {size} ranks of tensor parallelism did not meet: {error}"
                ) from error

    def new_number(self) -> int:
        """A number for another runner."""
        return next(self._numbers)

    def watch(self, ended: Callable[[], list[str]]) -> None:
        """Let errors say what `ended` tells about ranks that are processes of this one."""
        self._ended = ended

    def broadcast(self, tensor: Tensor, *, command: bool = False) -> None:
        """Give every rank what rank 0 has; of a command a rank may wait for ever."""
        group = self._commands if command else None
        self._run(lambda: dist.broadcast(tensor, 0, group=group))

    def all_reduce(self, tensor: Tensor) -> None:
        """Replace every rank's tensor by their sum."""
        self._run(lambda: dist.all_reduce(tensor))

    def gather(self, tensor: Tensor, parts: list[Tensor] | None) -> None:
        """Collect the ranks' tensors of one shape on rank 0, in the order of the ranks."""
        self._run(lambda: dist.gather(tensor, parts, dst=0))

    def part(self, reason: str) -> None:
        """Raise at every later call."""
        self._broken = (
            f"Tensor parallelism over {self.size} ranks failed: {reason}. Close this model and "
            "load it again."
        )

    def fail(self, reason: str) -> None:
        """Raise, now and at every later call."""
        self.part(reason)
        raise DistributedError(self._broken)

    def leave(self) -> None:
        """Close the connections."""
        self._broken = self._broken or "The ranks of this model were ended: load it again."
        if dist.is_initialized():
            with contextlib.suppress(RuntimeError):
                dist.destroy_process_group()

    @property
    def broken(self) -> bool:
        """Whether the ranks have parted."""
        return self._broken is not None

    def _run(self, collective: Callable[[], object]) -> None:
        if self._broken is not None:
            raise DistributedError(self._broken)
        try:
            collective()
        except RuntimeError as error:
            if self.rank > 0:  # rank 0 says it; this one only ends
                raise DistributedError(f"rank 0 or another rank is gone ({error})") from error
            try:
                self.fail("; ".join(self._awaited_reasons()) or f"a rank does not answer ({error})")
            except DistributedError as failure:
                raise failure from error

    def _awaited_reasons(self) -> list[str]:
        """Why ranks broke off; they may be about to say it."""
        deadline = time.monotonic() + _REASONS_S
        while not (reasons := self._reasons()) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        return reasons

    def _reasons(self) -> list[str]:
        with contextlib.suppress(RuntimeError):  # the store itself may be gone
            if said := _said(self._store, self.size):
                return said
        return self._ended()


def refuse_second(ranks: int) -> None:
    """Raise ConfigError where this process has a group already."""
    if dist.is_initialized():
        raise ConfigError.for_field(
            "tensor_parallel",
            ranks,
            "1 in a process that has a torch.distributed group already",
            "Close the other model first (llm.close()), or load this one in another process.",
        )


def wait_for_all(
    store: Any, key: str, size: int, seconds: float, ended: Callable[[], list[str]] = list
) -> None:
    """Wait on rank 0 until all others have reported `key`.

    Args:
        ended: tells of ranks that are processes of this one and have ended.

    Raises:
        DistributedError: one reported an error or ended, or time ran out.
    """
    deadline = time.monotonic() + seconds
    waiting = set(range(1, size))
    while waiting:
        late = ", ".join(map(str, sorted(waiting)))
        gone = ended()
        if reasons := _said(store, size) or gone:
            raise DistributedError(f"A rank of tensor parallelism failed: {'; '.join(reasons)}.")
        if time.monotonic() > deadline:
            raise DistributedError(f"Rank {late} was not {key} within {seconds:g} s.")
        waiting = {rank for rank in waiting if not store.check([f"{key}/{rank}"])}
        time.sleep(_POLL_S)


def report(store: Any, key: str, rank: int, text: str = "") -> None:
    """Leave a text for rank 0: that this rank is "here" or "ready", or its "error"."""
    store.set(f"{key}/{rank}", text)


def _said(store: Any, size: int) -> list[str]:
    """The errors that ranks have reported."""
    ranks = [rank for rank in range(1, size) if store.check([f"error/{rank}"])]
    return [f"rank {rank} raised {store.get(f'error/{rank}').decode()}" for rank in ranks]


@contextlib.contextmanager
def _loopback() -> Iterator[None]:
    """Let gloo use the loopback interface alone, unless the user named one."""
    name = "GLOO_SOCKET_IFNAME"
    if name in os.environ:
        yield
        return
    os.environ[name] = "lo"
    try:
        yield
    finally:
        os.environ.pop(name, None)
