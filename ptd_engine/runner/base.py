"""What the runners of a model share: all but how a step is run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ptd_engine.kernels import Processing, SelectMode
from ptd_engine.kv_cache import KVCache
from ptd_engine.model import CausalLM, ForwardBuffers
from ptd_engine.runner.buffers import PlanHeader, StepBuffers
from ptd_engine.runner.memory import StepMemory
from ptd_engine.runner.prefill import PREFILL_CHUNK, Prefill
from ptd_engine.runner.protocol import PromptObserver, StepCounts
from ptd_engine.runner.request_logits import LogitRules, RequestLogits
from ptd_engine.runner.step import Step, select_mode


class ModelRunner(ABC):
    """A `Runner` over a model: its memory, prefill, and what is read of a step afterwards.

    Attributes:
        memory, step: all that a step touches, and the step.
        max_path: longest accepted path of a step.
        max_nodes: rows of the largest step.
        top_k: successor ids a row in the output.
        node_buckets: row counts that a step is padded to; empty: exact.
        counts: see `Runner`.
    """

    def __init__(
        self,
        model: CausalLM,
        *,
        max_seq_len: int,
        max_nodes: int,
        max_path: int = 64,
        top_k: int = 0,
        node_buckets: Sequence[int] = (),
        prefill_chunk: int = PREFILL_CHUNK,
        vocab_limit: int | None = None,
        apart: bool = False,
    ) -> None:
        """Allocate everything a generation needs.

        Args:
            model: the loaded model; its rotary table must cover `max_seq_len`.
            max_seq_len: prompt and output together.
            max_nodes: rows of the largest step, root included.
            node_buckets: row counts that a step is padded to; empty: a step has exactly its rows,
                which suits a CPU, where padding costs time.
            vocab_limit: ids from here on stand for no token and are never chosen (the padding of a
                model's output matrix); None: there are none such.
            apart: see `StepBuffers`.

        Raises:
            ConfigError: the cache does not fit, or the rotary table is too short.
        """
        rows = max([max_nodes, *node_buckets])
        self.max_seq_len = max_seq_len
        self.max_nodes: int = rows
        self.max_path: int = max_path
        self.top_k: int = top_k
        self.node_buckets: Sequence[int] = tuple(node_buckets)
        self.prefill_chunk = min(prefill_chunk, max_seq_len)
        self.vocab_limit = model.config.vocab_size if vocab_limit is None else vocab_limit
        self.counts = StepCounts()
        self.memory = StepMemory(
            model,
            max_seq_len=max_seq_len,
            max_nodes=rows,
            max_path=max_path,
            top_k=top_k,
            prefill_chunk=self.prefill_chunk,
            apart=apart,
        )
        self.step = Step(self.memory, self.vocab_limit)
        self._prefill = Prefill(self.memory, self.prefill_chunk, self.vocab_limit)
        self._request: RequestLogits | None = None
        self._launched = 0

    @property
    def model(self) -> CausalLM:
        """The model, with the runner's own rotary table."""
        return self.memory.model

    @property
    def buffers(self) -> StepBuffers:
        """Plan and output."""
        return self.memory.buffers

    @property
    def cache(self) -> KVCache:
        """Keys and values."""
        return self.memory.cache

    @property
    def activations(self) -> ForwardBuffers:
        """Of the last step or prefill chunk."""
        return self.memory.activations

    @property
    def _logits(self) -> Tensor:
        return self.memory.logits

    @property
    def staging(self) -> npt.NDArray[np.uint8]:
        """See `Runner`."""
        return self.buffers.staging

    def begin(self, rules: LogitRules | None) -> None:
        """See `Runner`."""
        self.counts = StepCounts()
        self._request = None
        if rules is not None:
            self._request = RequestLogits(
                rules,
                vocab_size=self.model.config.vocab_size,
                vocab_limit=self.vocab_limit,
                max_nodes=self.max_nodes,
                device=self.model.device,
            )

    def reusable(self, rows: int, *, prompt_len: int) -> int:
        """See `Runner`."""
        return rows if self.model.rope.suits(prompt_len) else 0

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
        return self._prefill.run(
            token_ids, prompt_len=prompt_len, start=start, observe=observe, go_on=go_on
        )

    @torch.inference_mode()
    def launch(self, n_bucket: int) -> None:
        """See `Runner`."""
        if self._request is not None:
            self._request.advance()
        self._run(n_bucket)
        self.buffers.mark()
        self._launched = n_bucket

    @abstractmethod
    def _run(self, n_bucket: int) -> None:
        """Enqueue the staged plan's step."""

    def _mode(self, header: PlanHeader) -> SelectMode:
        """How a step chooses tokens: by argmax where `choose` will be asked for each of them."""
        row_by_row = self._request is not None and self._request.row_by_row
        return "greedy" if row_by_row else select_mode(header)

    def _processing(self, n_bucket: int) -> Processing | None:
        """What a step does to logits; None: nothing."""
        if self._request is None or self._request.row_by_row:
            return None
        return self._request.processing(self.buffers.view(n_bucket))

    def warmup(self, modes: Sequence[SelectMode] = ("greedy",)) -> int:
        """See `Runner`."""
        return 0

    def wait(self) -> npt.NDArray[np.int32]:
        """See `Runner`."""
        self.buffers.wait()
        self.counts.host_syncs += 1
        return self.buffers.host_output[: self._launched]

    @torch.inference_mode()
    def probabilities(self) -> npt.NDArray[np.float64]:
        """See `Runner`."""
        n = self.buffers.header().n_verify
        plan = self.buffers.view(self._launched)
        logits = self._last_logits(n)
        probs: Tensor = self.model.ops.probabilities(logits, plan.temperature[:n], plan.sampling)
        self.counts.host_syncs += 1
        return np.ascontiguousarray(probs.cpu().numpy(), dtype=np.float64)

    def choose(self, row: int, processor: Callable[[Tensor], Tensor]) -> int:
        """See `Runner`."""
        assert self._request is not None  # rules that say row_by_row
        with torch.inference_mode():
            hidden = self.activations.normed[row : row + 1]
            logits = self.model.logits(hidden, self._logits[row : row + 1])
        mode = select_mode(self.buffers.header())
        plan = self.buffers.view(self._launched)
        self.counts.host_syncs += 1
        return self._request.choose(row, logits, plan, processor, self.model.ops, mode)

    def logprobs(
        self, rows: Sequence[int]
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        """See `Runner`."""
        assert self._request is not None  # rules that ask for them
        self.counts.host_syncs += 1
        return self._request.logprobs(rows)

    def extend(self, token_ids: Sequence[int]) -> None:
        """See `Runner`."""
        if self._request is not None:
            self._request.extend(token_ids)

    @torch.inference_mode()
    def top2_gap(self, row: int = 0) -> float:
        """Difference of the two largest logits of a row of the last step (for reports), as they are
        after processing by the request's rules.
        """
        best = self._last_logits(row + 1)[row].float().topk(2).values
        return float(best[0] - best[1])

    def _last_logits(self, rows: int) -> Tensor:
        """Processed logits of the first rows of the last step, formed anew: `head_select` may not
        have done so.
        """
        logits = self.model.logits(self.activations.normed[:rows], self._logits[:rows])
        logits = logits[:, : self.vocab_limit]
        if self._request is not None:
            logits = logits.float()
            plan = self.buffers.view(self._launched)
            self.model.ops.process(logits, self._request.processing(plan))
        return logits
