"""A runner without a model: the next token is a function of the tokens before it.

Its KV cache holds token ids, and a row's context is read back from the cache rows that the row's
mask lets it see. So a wrong mask, position, commit or prefix is a wrong context, and loud.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from ptd_engine import _core
from ptd_engine.kernels import SelectMode
from ptd_engine.runner import LogitRules, PromptObserver, StepCounts

NextToken = Callable[[list[int]], int]
"""The token after a context; -1 where a model's logits would not be finite."""

POISON = -999  # in cache rows that hold nothing


def scripted(output: Sequence[int], *, prompt_len: int, other: int) -> NextToken:
    """A model that answers a prompt of this length with `output`, anything else with `other`."""

    def next_token(context: list[int]) -> int:
        done = len(context) - prompt_len
        on_script = 0 <= done < len(output) and context[prompt_len:] == list(output[:done])
        return output[done] if on_script else other

    return next_token


@dataclass(frozen=True)
class PlanView:
    """The fields of a packed plan of N rows, P commit slots."""

    n_nodes: int
    n_verify: int
    prefix_len: int
    n_commit: int
    flags: int
    sampling: npt.NDArray[np.float32]  # [4]
    token_ids: npt.NDArray[np.int32]  # [N]
    positions: npt.NDArray[np.int32]  # [N]
    commit_src: npt.NDArray[np.int32]  # [P]
    temperature: npt.NDArray[np.float32]  # [N]
    uniform: npt.NDArray[np.float32]  # [N]
    masks: list[int]  # N integers, bit j = row j is visible


def read_plan(block: bytes | npt.NDArray[np.uint8], n_bucket: int, max_path: int = 64) -> PlanView:
    """Unpack a plan."""
    layout = _core.plan_layout(n_bucket, max_path)

    def field(name: str, dtype: Any) -> npt.NDArray[Any]:
        offset, size = layout[name]
        return np.frombuffer(bytes(block[offset : offset + size]), dtype=dtype)

    n_nodes, n_verify, prefix_len, n_commit, flags = field("header", np.int32)[:5].tolist()
    masks = field("mask", np.uint64).reshape(n_bucket, -1)
    return PlanView(
        n_nodes=n_nodes,
        n_verify=n_verify,
        prefix_len=prefix_len,
        n_commit=n_commit,
        flags=flags,
        sampling=field("sampling", np.float32),
        token_ids=field("token_ids", np.int32),
        positions=field("positions", np.int32),
        commit_src=field("commit_src", np.int32),
        temperature=field("temperature", np.float32),
        uniform=field("uniform", np.float32),
        masks=[sum(int(word) << (64 * w) for w, word in enumerate(row)) for row in masks],
    )


class ToyRunner:
    """A `ptd_engine.runner.Runner` over a `NextToken`; asserts what every step must obey.

    Attributes:
        top_k: successors a row; the next token and then the ids that follow it.
        kv: int64 [max_seq_len + rows], the cache.
        plan: the last step's.
        contexts: the tokens that each row of the last step sees, itself included.
        prefills, steps: calls so far.
    """

    def __init__(
        self,
        next_token: NextToken,
        *,
        max_seq_len: int,
        vocab_size: int = 64,
        max_nodes: int = _core.MAX_TREE_NODES,
        max_path: int = 64,
        node_buckets: Sequence[int] = (),
        top_k: int = 0,
    ) -> None:
        """Allocate the cache and the plan's block."""
        self.top_k = top_k
        self.next_token = next_token
        self.max_seq_len = max_seq_len
        self.vocab_size = vocab_size
        self.max_nodes = max([max_nodes, *node_buckets])
        self.max_path = max_path
        self.node_buckets = tuple(node_buckets)
        self.kv = np.full(max_seq_len + max(self.max_nodes, max_path), POISON, np.int64)
        size = int(_core.plan_layout(self.max_nodes, max_path)["total"])
        self.staging: npt.NDArray[np.uint8] = np.zeros(size, np.uint8)
        self.plan: PlanView
        self.contexts: list[list[int]] = []
        self.prefills = self.steps = 0
        self.counts = StepCounts()
        self._output: npt.NDArray[np.int32] = np.zeros((0, 1), np.int32)

    def begin(self, rules: LogitRules | None) -> None:
        """See `Runner`: a model without logits has none to process."""
        self.counts = StepCounts()
        assert rules is None, "use a TableRunner"

    def reusable(self, rows: int, *, prompt_len: int) -> int:
        """See `Runner`."""
        return rows

    def prefill(
        self,
        token_ids: Sequence[int],
        *,
        prompt_len: int,
        start: int = 0,
        observe: PromptObserver | None = None,
        go_on: Callable[[], bool] | None = None,
    ) -> int:
        """See `Runner`: in one part."""
        if go_on is not None and not go_on():
            return start
        self.prefills += 1
        assert start + len(token_ids) == prompt_len - 1
        self.kv[start:] = POISON
        self.kv[start : prompt_len - 1] = token_ids
        if observe is not None and len(token_ids) > 0:
            tokens = self.kv[: prompt_len - 1].tolist()
            contexts = [tokens[: end + 1] for end in range(start, prompt_len - 1)]
            observe(start, self._outputs(contexts, len(contexts)))
        return start + len(token_ids)

    def place(self, n_bucket: int) -> None:
        """Run the staged plan's commit moves, write its rows and read their contexts back."""
        self.steps += 1
        self.plan = plan = read_plan(self.staging, n_bucket, self.max_path)
        self.staging[:] = 0xAB  # the next plan may rely on nothing of this one
        first = plan.prefix_len - plan.n_commit
        for i, source in enumerate(plan.commit_src):
            assert source >= first + i, "an in-place move never goes up"
            assert i < plan.n_commit or source == first + i, "an unused entry moves nothing"
            if i < plan.n_commit:
                self.kv[first + i] = self.kv[source]
        self.kv[plan.prefix_len :] = POISON
        self.kv[plan.prefix_len : plan.prefix_len + n_bucket] = plan.token_ids
        assert max(plan.positions) < self.max_seq_len, "a position beyond the context"
        self.contexts = []
        for row in range(plan.n_nodes):
            visible = [j for j in range(n_bucket) if plan.masks[row] >> j & 1]
            context = self.kv[[*range(plan.prefix_len), *(plan.prefix_len + j for j in visible)]]
            assert plan.positions[row] == len(context) - 1
            assert POISON not in context, "a row sees a cache row that holds nothing"
            self.contexts.append(context.tolist())

    def launch(self, n_bucket: int) -> None:
        """See `Runner`."""
        self.place(n_bucket)
        self._output = self._outputs(self.contexts, n_bucket)

    def _outputs(self, contexts: Sequence[list[int]], rows: int) -> npt.NDArray[np.int32]:
        outputs = np.full((rows, 1 + self.top_k), 7777, np.int32)  # padding rows are never read
        for row, context in enumerate(contexts):
            token = outputs[row, 0] = self.next_token(context)
            outputs[row, 1:] = [(token + k) % self.vocab_size for k in range(self.top_k)]
        return outputs

    def wait(self) -> npt.NDArray[np.int32]:
        """See `Runner`."""
        self.counts.host_syncs += 1
        return self._output

    def probabilities(self) -> npt.NDArray[np.float64]:
        """See `Runner`: all mass on the next token."""
        tokens = self._output[: self.plan.n_verify, 0]
        return np.eye(self.vocab_size)[tokens] * np.where(tokens < 0, np.nan, 1.0)[:, None]

    def choose(self, row: int, processor: Callable[[Tensor], Tensor]) -> int:
        """See `Runner`."""
        raise NotImplementedError("a model without logits: use a TableRunner")

    def logprobs(
        self, rows: Sequence[int]
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        """See `Runner`."""
        raise NotImplementedError("a model without logits: use a TableRunner")

    def extend(self, token_ids: Sequence[int]) -> None:
        """See `Runner`."""

    def warmup(self, modes: Sequence[SelectMode] = ("greedy",)) -> int:
        """See `Runner`: nothing can be captured."""
        return 0
