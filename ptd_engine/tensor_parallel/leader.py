"""Rank 0's runner: runs steps itself, and tells the other ranks to do the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch

from ptd_engine import _core
from ptd_engine.model import CausalLM
from ptd_engine.runner import EagerRunner, PromptObserver
from ptd_engine.tensor_parallel.commands import Command, Kind, send
from ptd_engine.tensor_parallel.group import Group


class LeaderRunner(EagerRunner):
    """An `EagerRunner` whose plans and prompts go to every rank.

    Only what fills the cache or is a step needs the other ranks; the rules of a request, choosing
    tokens and their probabilities are rank 0's alone.
    """

    def __init__(
        self,
        group: Group,
        model: CausalLM,
        *,
        max_seq_len: int,
        max_nodes: int,
        top_k: int = 0,
        vocab_limit: int | None = None,
    ) -> None:
        """Allocate here and on every other rank.

        Raises:
            ConfigError: as for `EagerRunner`.
            DistributedError: a rank is gone.
        """
        super().__init__(
            model,
            max_seq_len=max_seq_len,
            max_nodes=max_nodes,
            top_k=top_k,
            vocab_limit=vocab_limit,
        )
        self._group = group
        self._number = group.new_number()
        with group.turn:
            sizes = (max_seq_len, self.max_nodes, self.max_path)
            send(group, Command(Kind.OPEN, self._number, *sizes))

    def prefill(
        self,
        token_ids: Sequence[int],
        *,
        prompt_len: int,
        start: int = 0,
        observe: PromptObserver | None = None,
        go_on: Callable[[], bool] | None = None,
    ) -> int:
        """See `Runner`."""
        failed: list[BaseException] = []

        def guarded(position: int, rows: npt.NDArray[np.int32]) -> None:
            # A drafter's own error shall not break a turn off.
            if observe is not None and not failed:
                try:
                    observe(position, rows)
                except BaseException as error:
                    failed.append(error)

        shown = None if observe is None else guarded
        # One part at least: an empty one still prepares the rotary table.
        for begin in range(0, max(1, len(token_ids)), self.prefill_chunk):
            if begin < len(token_ids) and go_on is not None and not go_on():
                return start + begin
            part = list(token_ids[begin : begin + self.prefill_chunk])
            ids = torch.from_numpy(np.array(part, dtype=np.int32).view(np.uint8))
            with self._group.turn:
                command = Command(
                    Kind.PREFILL, self._number, start + begin, prompt_len, payload=ids.numel()
                )
                send(self._group, command, ids)
                super().prefill(part, prompt_len=prompt_len, start=start + begin, observe=shown)
            if failed:
                raise failed[0]
        return start + len(token_ids)

    def launch(self, n_bucket: int) -> None:
        """See `Runner`."""
        nbytes = int(_core.plan_layout(n_bucket, self.max_path)["total"])
        plan = torch.from_numpy(self.staging[:nbytes])
        with self._group.turn:
            send(self._group, Command(Kind.STEP, self._number, n_bucket, payload=nbytes), plan)
            super().launch(n_bucket)
