"""What a request asks of its logits (`LogitRules`), and its tensors on the device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ptd_engine.errors import ConfigError
from ptd_engine.kernels import Ops, Processing, SelectMode
from ptd_engine.kernels.torch_process import write_logprobs


@dataclass(frozen=True)
class LogitRules:
    """What is done to logits before temperature and filters; all ids are below the vocabulary.

    Attributes:
        prompt: its token ids.
        repetition_penalty, presence_penalty, frequency_penalty, logit_bias: see `SamplingParams`.
        forbidden_ids: not to be chosen before output token number `min_new_tokens` (from 0).
        min_new_tokens: see there.
        logprobs: None, or how many likeliest tokens to report beside the chosen one.
        row_by_row: tokens come from `Runner.choose`; a step's own are the plain argmax.
    """

    prompt: Sequence[int]
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    forbidden_ids: Sequence[int] = ()
    min_new_tokens: int = 0
    logprobs: int | None = None
    row_by_row: bool = False

    @property
    def active(self) -> bool:
        """Whether they ask for anything."""
        return bool(
            self.has_penalties
            or self.logit_bias
            or self.forbidden_ids
            or self.logprobs is not None
            or self.row_by_row
        )

    @property
    def has_penalties(self) -> bool:
        """Whether what was generated matters."""
        off = (1.0, 0.0, 0.0)
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != off


class PlanFields(Protocol):
    """Of a plan on the device, what choosing a token reads; see `runner.PlanView`."""

    @property
    def token_ids(self) -> Tensor: ...  # noqa: D102
    @property
    def positions(self) -> Tensor: ...  # noqa: D102
    @property
    def mask(self) -> Tensor: ...  # noqa: D102
    @property
    def temperature(self) -> Tensor: ...  # noqa: D102
    @property
    def uniform(self) -> Tensor: ...  # noqa: D102
    @property
    def sampling(self) -> Tensor: ...  # noqa: D102


class RequestLogits:
    """One request's rules as static tensors; they live as long as the request."""

    def __init__(
        self,
        rules: LogitRules,
        *,
        vocab_size: int,
        vocab_limit: int,
        max_nodes: int,
        device: torch.device,
    ) -> None:
        """Allocate.

        Args:
            vocab_size: ids that have a logit.
            vocab_limit: ids that stand for a token.
            max_nodes: rows of the largest step.
        """
        self.row_by_row = rules.row_by_row
        self._entered: list[int] = []
        self._limit = vocab_limit
        self._device = device
        self._counts: Tensor | None = None
        self._penalties: Tensor | None = None
        if rules.has_penalties:
            self._counts = torch.zeros(2, vocab_size, dtype=torch.int32, device=device)
            self._penalties = self._tensor(
                [rules.repetition_penalty, rules.presence_penalty, rules.frequency_penalty, 0.0]
            )
            self._count(0, rules.prompt)
        self._bias_ids: Tensor | None = None
        self._bias_values: Tensor | None = None
        if rules.logit_bias:
            self._bias_ids = self._tensor([*rules.logit_bias], torch.int32)
            self._bias_values = self._tensor([*rules.logit_bias.values()])
        self._forbidden_ids: Tensor | None = None
        self._free_from: Tensor | None = None
        if rules.forbidden_ids and rules.min_new_tokens > 0:
            self._forbidden_ids = self._tensor(sorted({*rules.forbidden_ids}), torch.int32)
            # The row at position p chooses output token p + 1 - prompt length.
            free_from = len(rules.prompt) + rules.min_new_tokens - 1
            self._free_from = self._tensor([min(free_from, 2**31 - 1)], torch.int32)
        self._logprob_ids: Tensor | None = None
        self._logprob_values: Tensor | None = None
        if rules.logprobs is not None:
            shape = (max_nodes, 1 + rules.logprobs)
            self._logprob_ids = torch.zeros(shape, dtype=torch.int32, device=device)
            self._logprob_values = torch.zeros(shape, dtype=torch.float32, device=device)

    def _tensor(
        self, values: Sequence[float] | Sequence[int], dtype: torch.dtype = torch.float32
    ) -> Tensor:
        made = torch.tensor(values, dtype=dtype)
        if self._device.type == "cuda":  # a copy from memory that is not pinned would be waited for
            return made.pin_memory().to(self._device, non_blocking=True)
        return made.to(self._device)

    def _count(self, which: int, token_ids: Sequence[int]) -> None:
        if self._counts is not None and len(token_ids) > 0:
            ids = self._tensor(token_ids, torch.int32)
            self._counts[which].index_add_(0, ids, torch.ones_like(ids))

    def extend(self, token_ids: Sequence[int]) -> None:
        """Take note of tokens that entered the output; they count from the next step on."""
        self._entered += token_ids

    def advance(self) -> None:
        """Begin a step: count what entered the output since the last one."""
        self._count(1, self._entered)
        self._entered = []

    def processing(self, plan: PlanFields) -> Processing:
        """The rules for the rows of a plan."""
        return Processing(
            token_ids=plan.token_ids,
            mask=plan.mask,
            positions=plan.positions,
            counts=self._counts,
            penalties=self._penalties,
            bias_ids=self._bias_ids,
            bias_values=self._bias_values,
            forbidden_ids=self._forbidden_ids,
            free_from=self._free_from,
            logprob_ids=self._logprob_ids,
            logprob_values=self._logprob_values,
        )

    def logprobs(
        self, rows: Sequence[int]
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        """Ids and log-probabilities of rows of the last step, [len(rows), 1 + k] each."""
        assert self._logprob_ids is not None and self._logprob_values is not None  # asked for
        at = self._tensor(rows, torch.int64)
        ids, values = self._logprob_ids[at], self._logprob_values[at]
        both = torch.cat((ids, values.view(torch.int32)), dim=1).cpu()  # one wait for both
        return both[:, : ids.shape[1]].numpy(), both[:, ids.shape[1] :].view(torch.float32).numpy()

    def choose(
        self,
        row: int,
        logits: Tensor,
        plan: PlanFields,
        processor: Callable[[Tensor], Tensor],
        ops: Ops,
        mode: SelectMode,
    ) -> int:
        """The token of one row, its logits changed by the rules and then by a user's function.

        Args:
            row: a verified one.
            logits: [1, V], of this row as the model made them.
            processor: gets [V] in fp32, -inf where an id stands for no token.

        Raises:
            ConfigError: it returned something else than [V] numbers.
        """
        processing = self.processing(plan)
        with torch.inference_mode():
            raw = logits.float()[:, : self._limit]
            head = raw.clone()
            ops.process(head, processing, first_row=row)
        # Outside of inference mode, so that the user's function may do with it what it likes.
        given = torch.full(logits.shape[1:], -torch.inf, device=self._device)
        given[: self._limit] = head[0]
        returned = processor(given)
        if not isinstance(returned, Tensor) or returned.shape != given.shape:
            shown = tuple(returned.shape) if isinstance(returned, Tensor) else returned
            raise ConfigError.for_field(
                "what logits_processor returned", shown, f"a tensor of shape {tuple(given.shape)}"
            )
        out = torch.empty(1, 1, dtype=torch.int32, device=self._device)
        with torch.inference_mode():
            ops.select(
                returned.detach().to(self._device, torch.float32)[None].contiguous(),
                plan.temperature[row : row + 1],
                plan.uniform[row : row + 1],
                plan.sampling,
                n_verify=1,
                mode=mode,
                out=out,
                vocab_limit=self._limit,
            )
            write_logprobs(raw, out[:, 0], processing, row)
        return int(out)
