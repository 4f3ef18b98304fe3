"""C++ core: trees, candidate pool, step plans, verification, sessions (see csrc/include/ptd)."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, TypedDict

import numpy as np
import numpy.typing as npt

MAX_TREE_NODES: int

class InvalidArgument(ValueError): ...
class NonFiniteLogits(RuntimeError): ...

NestedNode: TypeAlias = tuple[int, list["NestedNode"]]

class SessionStats(TypedDict):
    """Counters over the steps of a request; prefill is not a step."""

    steps: int
    tokens: int
    hit_steps: int
    hit_tokens: int
    candidate_nodes: int
    draft_nodes: int
    accepted: int
    accepted_histogram: list[int]

class DraftTree:
    def __init__(
        self, width: int, depth: int, max_nodes: int = 96, eos_ids: Sequence[int] = ()
    ) -> None: ...
    def init(self, chains: Sequence[Sequence[int]]) -> None: ...
    def rows(self) -> list[tuple[int, int]]: ...
    def expand(self, predictions: Sequence[int], each: int = 1) -> None: ...
    def refill(self) -> None: ...
    def step_and_prune(self) -> None: ...
    def roots(self) -> list[NestedNode]: ...
    def __len__(self) -> int: ...
    @property
    def capacity(self) -> int: ...

class CandidatePool:
    def __init__(self, max_nodes_per_key: int = 60, max_keys: int = 4096) -> None: ...
    def merge(self, draft_tree: DraftTree) -> None: ...
    def retrieve(self, token: int, budget: int) -> list[tuple[int, int]]: ...
    def dump(self) -> dict[int, list[NestedNode]]: ...
    def clear(self) -> None: ...
    @property
    def total_nodes(self) -> int: ...
    @property
    def key_count(self) -> int: ...
    @property
    def capacity(self) -> int: ...

class TreeBuilder:
    def __init__(
        self, root: int, max_nodes: int = 256, max_path: int = 64, max_depth: int = 1 << 30
    ) -> None: ...
    def add_candidate(self, parent: int, token: int) -> int: ...
    def add_draft(self, parent: int, token: int) -> int: ...
    def __len__(self) -> int: ...
    @property
    def n_verify(self) -> int: ...
    @property
    def room(self) -> int: ...
    @property
    def tokens(self) -> list[int]: ...
    @property
    def parents(self) -> list[int]: ...
    @property
    def depths(self) -> list[int]: ...
    def pack(
        self,
        prefix_len: int,
        commit_src: Sequence[int] = (),
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        seed: int = 0,
        *,
        n_bucket: int,
        max_path: int = 64,
    ) -> bytes: ...

def plan_layout(n_bucket: int, max_path: int) -> dict[str, Any]: ...
def philox_uniform(seed: int, position: int, draw: int = 0) -> float: ...
def philox4x32(counter: Sequence[int], key: Sequence[int]) -> list[int]: ...
def verify_walk(
    tokens: Sequence[int], parents: Sequence[int], next_tokens: Sequence[int], n_verify: int
) -> list[int]: ...
def verify_recursive(
    tokens: Sequence[int],
    parents: Sequence[int],
    n_verify: int,
    probs: npt.NDArray[np.float64],
    draw: Callable[[int, int], float],
) -> tuple[list[int], int]: ...

class DrafterNeeds:
    def __init__(
        self,
        max_nodes: int,
        top_k: int = 0,
        max_accepted: int = 0,
        prompt_outputs: bool = False,
        top_p: float = 0.0,
        step_cost: bool = False,
    ) -> None: ...
    @property
    def max_nodes(self) -> int: ...
    @property
    def top_k(self) -> int: ...
    @property
    def max_accepted(self) -> int: ...
    @property
    def prompt_outputs(self) -> bool: ...
    @property
    def top_p(self) -> float: ...
    @property
    def step_cost(self) -> bool: ...

class StepOutcome:
    """A copy of what a step produced; `outputs` is [rows, 1 + top_k]."""

    @property
    def tree(self) -> TreeBuilder: ...
    @property
    def accepted(self) -> list[int]: ...
    @property
    def new_tokens(self) -> list[int]: ...
    @property
    def outputs(self) -> npt.NDArray[np.int32]: ...

class Drafter:
    """Subclass it: needs(), begin(prompt), propose(committed, tree), observe(outcome).

    Serves one session at a time. `tree.add_candidate(parent, token)` and `tree.add_draft` return
    the new row, or -1 where the step is full or the row too deep; -1 is no valid parent. What is
    added to `tree` after propose() has returned is ignored.
    """

    def __init__(self) -> None: ...
    def needs(self) -> DrafterNeeds: ...
    def begin(self, prompt: list[int]) -> None: ...
    def propose(self, committed: list[int], tree: TreeBuilder) -> None: ...
    def observe(self, outcome: StepOutcome) -> None: ...
    def observe_prompt(self, first: int, outputs: npt.NDArray[np.int32]) -> None:
        """Optional; called where `needs` sets prompt_outputs: the model's outputs [n, 1 + top_k]
        for the prompt's rows first, first + 1, ...
        """
    def set_step_cost(
        self, rows: list[int], seconds: list[float], seconds_per_token: list[float]
    ) -> None:
        """Optional; called between requests where `needs` sets step_cost: a step of rows[i] rows
        takes seconds[i], and seconds_per_token[i] more for each token of the prefix.
        """

class AutoregressiveDrafter(Drafter): ...

class PTDDrafter(Drafter):
    def __init__(
        self,
        width: int = 4,
        depth: int = 6,
        max_draft_nodes: int = 96,
        max_candidate_nodes: int = 60,
        pool_nodes_per_key: int = 60,
        pool_max_keys: int = 4096,
        recycle_verified: bool = False,
        share_pool: bool = False,
        seed: int = 0,
        eos_ids: Sequence[int] = (),
        expansion: str = "greedy",
        expansion_k: int = 4,
        expansion_p: float = 0.8,
        initialisation: str = "random",
        layout: str = "sibling",
    ) -> None: ...
    def set_seed_source(
        self, source: Callable[[list[int]], Sequence[Sequence[int]]] | None
    ) -> None:
        """`source(prompt)` gives chains, the best first; asked where initialisation is "ner"."""

    @property
    def has_seed_source(self) -> bool: ...
    @property
    def initialisation(self) -> str: ...
    @property
    def draft_tree(self) -> DraftTree: ...
    @property
    def pool(self) -> CandidatePool: ...
    @property
    def initial_chains(self) -> list[list[int]]: ...

class PromptLookupDrafter(Drafter):
    def __init__(self, max_ngram: int = 3, max_candidate_nodes: int = 10) -> None: ...
    @property
    def indexed_ngrams(self) -> int: ...

class TokenRecyclingDrafter(Drafter):
    """`static_tree`: (parent, rank) of its nodes, parent -1 below the last token."""

    def __init__(
        self, max_candidate_nodes: int = 80, successors: int = 8, warm: bool = False
    ) -> None: ...
    def successors(self, token: int) -> list[int]: ...
    @property
    def static_tree(self) -> list[tuple[int, int]]: ...
    @property
    def known_tokens(self) -> int: ...

class SuffixDrafter(Drafter):
    """`text_nodes`: nodes of the suffix tree; `indexed_tokens`: of earlier outputs."""

    def __init__(
        self,
        max_candidate_nodes: int = 32,
        max_depth: int = 64,
        factor: float = 1.0,
        min_probability: float = 0.1,
        as_tree: bool = True,
        index_tokens: int = 0,
    ) -> None: ...
    @property
    def text_nodes(self) -> int: ...
    @property
    def indexed_tokens(self) -> int: ...

class HybridDrafter(Drafter):
    def __init__(
        self,
        max_candidate_nodes: int = 64,
        auto_budget: bool = False,
        max_draft_nodes: int = 0,
        width: int = 1,
        depth: int = 6,
        successors: int = 8,
        prompt_outputs: bool = False,
        keep_statistics: bool = False,
        keep_tables: bool = False,
        table_entries: int = 32768,
        sources: int = 0xFFFFFFFF,
        seed: int = 0,
        eos_ids: Sequence[int] = (),
    ) -> None: ...
    @property
    def budgets(self) -> list[int]:
        """Candidates of each step of this request."""
    def step_seconds(self, rows: int) -> float:
        """What a step of so many rows takes, as learned from the steps so far."""
    @property
    def nodes(self) -> list[tuple[int, int, float, int, bool]]:
        """The last step's candidates, row 1 first: (token, parent row, probability that the path is
        accepted, bits of the sources that proposed it, whether it was accepted).
        """
    @property
    def source_counts(self) -> dict[str, tuple[int, int, int]]:
        """Of this request, by source: nodes it proposed, those accepted, and those of them that no
        other source proposed.
        """
    @property
    def reliability(self) -> tuple[list[int], list[float], list[int]]:
        """Predictions by tenths of probability: how many, their sum, how many came true."""
    @property
    def root(self) -> int:
        """Token of the last tree's root; -1 before the request's first step."""
    @property
    def acceptance_state(self) -> list[float]:
        """All that was learned about the sources."""
    def load_acceptance_state(self, state: Sequence[float]) -> None: ...

NgramPool: TypeAlias = dict[int, list[tuple[int, ...]]]

class LookaheadDrafter(Drafter):
    """`pool`: keys and their tuples, both from the least to the most recently used; `window`: its
    levels.
    """

    def __init__(
        self,
        level: int = 5,
        window: int = 15,
        guesses: int = 15,
        prompt_ngrams: bool = False,
        faithful: bool = False,
        pool_max_keys: int = 4096,
        seed: int = 0,
    ) -> None: ...
    @property
    def pool(self) -> NgramPool: ...
    @property
    def window(self) -> list[list[int]]: ...

class SelfDraftDrafter(Drafter):
    """`pool` and `window`: see LookaheadDrafter. `corpus`: token -> n-grams that follow it."""

    def __init__(
        self,
        branches: int = 6,
        length: int = 6,
        ngram: int = 4,
        ngrams_per_key: int = 10,
        corpus: Mapping[int, Sequence[Sequence[int]]] = {},
        corpus_candidates: int = 3,
        faithful: bool = False,
        pool_max_keys: int = 4096,
        seed: int = 0,
    ) -> None: ...
    @property
    def pool(self) -> NgramPool: ...
    @property
    def window(self) -> list[list[int]]: ...
    @property
    def perturbations(self) -> list[list[int]]: ...

class Session:
    """One request. `stop_check(token)` is asked about each output token in order, also within an
    accepted path; true ends the output with that token.
    """

    def __init__(
        self,
        prompt: Sequence[int],
        drafter: Drafter,
        *,
        max_seq_len: int,
        max_new_tokens: int = 128,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        seed: int = 0,
        stop_ids: Sequence[int] = (),
        stop_check: Callable[[int], bool] | None = None,
        max_path: int = 64,
        output_top_k: int = 0,
        max_nodes: int = 256,
        vocab_size: int = 0,
        node_buckets: Sequence[int] = (),
    ) -> None: ...
    def observe_prompt(self, first: int, outputs: npt.NDArray[np.int32]) -> None: ...
    def plan(self, block: npt.NDArray[np.uint8]) -> int: ...
    def commit(self, output: npt.NDArray[np.int32]) -> tuple[list[int], int]: ...
    def commit_recursive(
        self, output: npt.NDArray[np.int32], probs: npt.NDArray[np.float64]
    ) -> tuple[list[int], int]: ...
    def commit_lazily(
        self, output: npt.NDArray[np.int32], next_token: Callable[[int], int]
    ) -> tuple[list[int], int]:
        """`next_token(row)` is asked for the root, then for each accepted row, once its token is
        in `token_ids`; -1 where it has none.
        """

    @property
    def finished(self) -> bool: ...
    @property
    def finish_reason(self) -> str: ...
    @property
    def plan_bytes(self) -> int: ...
    @property
    def kv_len(self) -> int: ...
    @property
    def prompt_len(self) -> int: ...
    @property
    def token_ids(self) -> list[int]: ...
    @property
    def accepted_rows(self) -> list[int]: ...
    @property
    def tree(self) -> TreeBuilder: ...
    @property
    def stats(self) -> SessionStats: ...

# --- CPU kernels: addresses in, nothing out; csrc/include/ptd/cpu/kernels.h describes each. ------

def cpu_isas() -> dict[str, str]:
    """Instruction sets by name, each with the reason why it is not available here, "" if it is."""

def cpu_best_isa() -> str: ...
def cpu_large_pages(memory: int, nbytes: int) -> None:
    """Ask for large pages there; `memory` begins at a page."""

class CpuWeight:
    """A packed matrix at `block`, 64-byte aligned memory of the caller's of `nbytes` bytes."""

    def __init__(
        self, format: str, out_features: int, in_features: int, bias: bool, block: int
    ) -> None: ...
    @staticmethod
    def nbytes(format: str, out_features: int, in_features: int, bias: bool) -> int: ...
    def pack(self, source_is_bf16: bool, source: int, bias: int) -> None: ...

class CpuProgram:
    """Recorded operations; its length counts their stages."""

    def __len__(self) -> int: ...

class CpuExecutor:
    """A team of threads that runs kernels of one instruction set ("auto": the best one here)."""

    def __init__(self, isa: str, num_threads: int) -> None: ...
    @property
    def isa(self) -> str: ...
    @property
    def num_threads(self) -> int: ...
    def record(self, call: Callable[[], None]) -> CpuProgram: ...
    def run(self, program: CpuProgram) -> None: ...
    def linear(
        self, bf16: bool, rows: int, x: int, weight: CpuWeight, out: int, out_f32: bool
    ) -> None: ...
    def head(
        self,
        bf16: bool,
        rows: int,
        x: int,
        weight: CpuWeight,
        logit_rows: int,
        logits: int,
        limit: int,
        next: int,
        next_stride: int,
    ) -> None: ...
    def embed(self, bf16: bool, rows: int, ids: int, table: CpuWeight, out: int) -> None: ...
    def add_rms_norm(
        self,
        bf16: bool,
        rows: int,
        hidden: int,
        x: int,
        residual: int,
        weight: int,
        eps: float,
        out: int,
    ) -> None: ...
    def rope_kv_write(
        self,
        bf16: bool,
        rows: int,
        q_heads: int,
        kv_heads: int,
        head_dim: int,
        qkv: int,
        q_norm: int,
        k_norm: int,
        eps: float,
        cos_sin: int,
        positions: int,
        prefix_len: int,
        k_cache: int,
        v_cache: int,
        kv_head_stride: int,
        q_out: int,
    ) -> None: ...
    def attention(
        self,
        bf16: bool,
        rows: int,
        q_heads: int,
        kv_heads: int,
        head_dim: int,
        q: int,
        k_cache: int,
        v_cache: int,
        kv_head_stride: int,
        mask: int,
        prefix_len: int,
        scale: float,
        max_keys: int,
        out: int,
    ) -> None: ...
    def silu_mul(self, bf16: bool, rows: int, inner: int, gate_up: int, out: int) -> None: ...
    def kv_commit(
        self,
        bf16: bool,
        layers: int,
        kv_heads: int,
        head_dim: int,
        capacity: int,
        k_cache: int,
        v_cache: int,
        commit_src: int,
        prefix_len: int,
        n_commit: int,
    ) -> None: ...
    def select(
        self,
        rows: int,
        vocab: int,
        logits: int,
        logits_stride: int,
        temperature: int,
        uniform: int,
        sampling: int,
        filter: bool,
        successors: int,
        next: int,
        next_stride: int,
    ) -> None: ...
