"""Steps run op by op, or replayed where the ops can be recorded: the production path on a CPU, the
reference for every other runner."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ptd_engine.errors import ConfigError
from ptd_engine.kernels import Record, SelectMode
from ptd_engine.kv_cache import KVCache
from ptd_engine.model import CausalLM, ForwardBuffers
from ptd_engine.runner.buffers import FILTERS, MOVES_ROWS, SAMPLES, StepBuffers
from ptd_engine.runner.request_logits import LogitRules, RequestLogits

PromptObserver = Callable[[int, npt.NDArray[np.int32]], None]

PREFILL_CHUNK = 512  # rows: bounds the activations; larger chunks gain nothing on a CPU


class Runner(Protocol):
    """What the engine asks of an execution: fill the cache, run a packed plan, hand back tokens."""

    @property
    def max_path(self) -> int:
        """Longest accepted path of a step."""
        ...

    @property
    def max_nodes(self) -> int:
        """Rows of the largest step there is room for."""
        ...

    @property
    def top_k(self) -> int:
        """Successor ids a row in the output."""
        ...

    @property
    def node_buckets(self) -> Sequence[int]:
        """Row counts that a step is padded to; empty: exact."""
        ...

    @property
    def staging(self) -> npt.NDArray[np.uint8]:
        """Where the session writes the next plan."""
        ...

    def begin(self, rules: LogitRules | None) -> None:
        """Take the rules of the next request, before its prefill; None: its logits stay as is."""
        ...

    def reusable(self, rows: int, *, prompt_len: int) -> int:
        """How many of the first `rows` cache rows a prompt of this length would get again, if its
        tokens there are those of the last sequence. Asked before `prefill`.
        """
        ...

    def prefill(
        self,
        token_ids: Sequence[int],
        *,
        prompt_len: int,
        start: int = 0,
        observe: PromptObserver | None = None,
        go_on: Callable[[], bool] | None = None,
    ) -> int:
        """Start a sequence: cache the keys and values of these tokens from position `start`.

        Args:
            prompt_len: length of the whole prompt (some rope types depend on it).
            start: rows of the last sequence that stay.
            observe: shown the greedy output of every row, in order, part by part: the position of
                the part's first row and [n, 1 + top_k] (valid during the call). Costs the output
                matrix over all rows.
            go_on: asked before every part; false ends the prefill there.

        Returns:
            the cache rows that hold the prompt, from 0 on: start + len(token_ids) at the end.
        """
        ...

    def launch(self, n_bucket: int) -> None:
        """Enqueue the staged plan's step: commit of the last path, forward, select."""
        ...

    def wait(self) -> npt.NDArray[np.int32]:
        """Output of the launched step, [n_bucket, 1 + top_k]; the only host sync of a step."""
        ...

    def probabilities(self) -> npt.NDArray[np.float64]:
        """Processed distributions of the last step's root and candidate rows, [n_verify, V]."""
        ...

    def choose(self, row: int, processor: Callable[[Tensor], Tensor]) -> int:
        """Next token of a verified row of the last step by way of a user's function of its logits;
        a host sync each. See `RequestLogits.choose`.
        """
        ...

    def logprobs(
        self, rows: Sequence[int]
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        """Ids and log-probabilities of rows of the last step, [len(rows), 1 + k] each: the chosen
        token, then the k likeliest. Only where the rules ask for them.
        """
        ...

    def extend(self, token_ids: Sequence[int]) -> None:
        """Take note of what a step has added to the output, before the next one."""
        ...


class EagerRunner:
    """Calls each op from Python; with ops that can be recorded, once for every number of rows.

    Attributes:
        max_path: longest accepted path of a step.
        top_k: successor ids a row in the output.
        node_buckets: row counts that a step is padded to; empty: exact.
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

        Raises:
            ConfigError: the cache does not fit, or the rotary table is too short.
        """
        rows = max([max_nodes, *node_buckets])
        if model.rope.cos_sin.shape[0] < max_seq_len:
            raise ConfigError.for_field(
                "max_seq_len",
                max_seq_len,
                f"at most {model.rope.cos_sin.shape[0]}",
                "Load the model with the longer context.",
            )
        config, device = model.config, model.device
        # Rope types that depend on the prompt rewrite their table: every runner has its own.
        self.model = replace(model, rope=model.rope.for_one_sequence())
        self.max_nodes: int = rows
        self.max_path: int = max_path
        self.top_k: int = top_k
        self.node_buckets: Sequence[int] = tuple(node_buckets)
        self.prefill_chunk = min(prefill_chunk, max_seq_len)
        self.vocab_limit = config.vocab_size if vocab_limit is None else vocab_limit
        self._request: RequestLogits | None = None
        self.buffers = StepBuffers(rows, max_path, top_k, device)
        # Behind the last position lie the rows of a step's tree, and of a no-op commit entry.
        self.cache = KVCache(
            config.num_layers,
            config.num_kv_heads,
            max_seq_len + max(rows, max_path),
            config.head_dim,
            model.dtype,
            device,
        )
        self.activations = ForwardBuffers.allocate(
            config, max(rows, self.prefill_chunk), model.dtype, device
        )
        self._logits = torch.empty(rows, config.vocab_size, dtype=model.logits_dtype, device=device)
        self._zeros = torch.zeros(max(rows, 4), device=device)  # temperatures of greedy rows
        self._prefill_len = torch.zeros(1, dtype=torch.int32, device=device)
        self._done = torch.cuda.Event() if device.type == "cuda" else None
        self._launched = 0
        self._replays: dict[int, Callable[[], None]] = {}  # by number of rows

    @property
    def staging(self) -> npt.NDArray[np.uint8]:
        """See `Runner`."""
        return self.buffers.staging

    def begin(self, rules: LogitRules | None) -> None:
        """See `Runner`."""
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

    @torch.inference_mode()
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
        self.model.rope.prepare(prompt_len)
        ids = torch.tensor(list(token_ids), dtype=torch.int32, device=self.model.device)
        positions = torch.arange(
            start, start + len(token_ids), dtype=torch.int32, device=self.model.device
        )
        for begin in range(0, len(token_ids), self.prefill_chunk):
            if go_on is not None and not go_on():
                return start + begin
            end = min(begin + self.prefill_chunk, len(token_ids))
            self._prefill_len.fill_(start + begin)
            self.model.forward(
                ids[begin:end],
                positions[begin:end],
                None,
                self._prefill_len,
                start + end,
                self.cache,
                self.activations,
                exact_bound=True,
            )
            if observe is not None:
                self._show_prompt(start + begin, end - begin, observe)
        return start + len(token_ids)

    def _show_prompt(self, position: int, rows: int, observe: PromptObserver) -> None:
        """Outputs of the first rows of `activations.normed`, as many at once as a step has."""
        for first in range(0, rows, self.max_nodes):
            n = min(self.max_nodes, rows - first)
            self.model.ops.head_select(
                self.activations.normed[first : first + n],
                self.model.weights.lm_head,
                self._logits[:n],
                self._zeros[:n],
                self._zeros[:n],
                self._zeros,
                n_verify=0,
                mode="greedy",
                out=self.buffers.output[:n],
                vocab_limit=self.vocab_limit,
            )
            self.buffers.download(n)
            if self._done is not None:
                self._done.record()
                self._done.synchronize()
            observe(position + first, self.buffers.host_output[:n])

    @torch.inference_mode()
    def launch(self, n_bucket: int) -> None:
        """See `Runner`."""
        header = self.buffers.header()
        self.buffers.upload(n_bucket)
        plan = self.buffers.view(n_bucket)
        ops = self.model.ops
        if header.flags & MOVES_ROWS:
            ops.kv_commit(
                self.cache.k,
                self.cache.v,
                plan.commit_src[: header.n_commit],
                plan.prefix_len,
                plan.n_commit,
            )
        if ops.record is not None:
            self._replay(n_bucket, ops.record)
        else:
            self._forward(n_bucket, header.prefix_len + n_bucket, exact_bound=True)
        request = self._request
        if request is not None:
            request.advance()
        row_by_row = request is not None and request.row_by_row
        ops.head_select(
            self.activations.normed[:n_bucket],
            self.model.weights.lm_head,
            self._logits[:n_bucket],
            plan.temperature,
            plan.uniform,
            plan.sampling,
            n_verify=header.n_verify,
            mode="greedy" if row_by_row else _select_mode(header.flags),
            out=self.buffers.output[:n_bucket],
            vocab_limit=self.vocab_limit,
            processing=None if request is None or row_by_row else request.processing(plan),
        )
        self.buffers.download(n_bucket)
        if self._done is not None:
            self._done.record()
        self._launched = n_bucket

    def _forward(self, n_bucket: int, kv_bound: int, *, exact_bound: bool) -> None:
        """Run the plan's rows through the model; the result is in `activations.normed`."""
        plan = self.buffers.view(n_bucket)
        self.model.forward(
            plan.token_ids,
            plan.positions,
            plan.mask,
            plan.prefix_len,
            kv_bound,
            self.cache,
            self.activations,
            exact_bound=exact_bound,
        )

    def _replay(self, n_bucket: int, record: Record) -> None:
        replay = self._replays.get(n_bucket)
        if replay is None:
            # The prefix grows under a recorded pass: its bound is the whole cache.
            bound = self.cache.capacity
            replay = record(lambda: self._forward(n_bucket, bound, exact_bound=False))
            self._replays[n_bucket] = replay
        replay()

    def wait(self) -> npt.NDArray[np.int32]:
        """See `Runner`."""
        if self._done is not None:
            self._done.synchronize()
        return self.buffers.host_output[: self._launched]

    @torch.inference_mode()
    def probabilities(self) -> npt.NDArray[np.float64]:
        """See `Runner`."""
        n = self.buffers.header().n_verify
        plan = self.buffers.view(self._launched)
        logits = self._last_logits(n)
        probs: Tensor = self.model.ops.probabilities(logits, plan.temperature[:n], plan.sampling)
        return np.ascontiguousarray(probs.cpu().numpy(), dtype=np.float64)

    def choose(self, row: int, processor: Callable[[Tensor], Tensor]) -> int:
        """See `Runner`."""
        assert self._request is not None  # rules that say row_by_row
        with torch.inference_mode():
            hidden = self.activations.normed[row : row + 1]
            logits = self.model.logits(hidden, self._logits[row : row + 1])
        mode = _select_mode(self.buffers.header().flags)
        plan = self.buffers.view(self._launched)
        return self._request.choose(row, logits, plan, processor, self.model.ops, mode)

    def logprobs(
        self, rows: Sequence[int]
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        """See `Runner`."""
        assert self._request is not None  # rules that ask for them
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


def _select_mode(flags: int) -> SelectMode:
    if flags & FILTERS:
        return "filter"
    return "sample" if flags & SAMPLES else "greedy"
