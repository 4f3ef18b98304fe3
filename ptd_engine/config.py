"""What a user may set: drafting (`PTDConfig`), and sampling (`SamplingParams`, from `sampling`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from ptd_engine.checks import MAX_SEED, check_bool, check_choice, check_float, check_int
from ptd_engine.drafter_configs import MAX_TREE_NODES
from ptd_engine.sampling import ResolvedParams, SamplingParams, Verification

__all__ = ["MAX_TREE_NODES", "PTDConfig", "ResolvedParams", "SamplingParams", "Verification"]

_MAX_TREE_LIMIT = 64  # width and depth

Expansion = Literal["greedy", "top-k", "top-p"]
Initialisation = Literal["random", "context", "ner"]
Layout = Literal["sibling", "chained"]


@dataclass(frozen=True, slots=True)
class PTDConfig:
    """Progressive Tree Drafting. Defaults are the paper's (width 4, depth 6).

    Attributes:
        width: most children of a draft node and most subtree roots (the paper's w), 1 to 64.
        depth: a draft subtree of this height loses its root (the paper's d), 1 to 64.
        max_draft_nodes: draft rows a step; expansion stops there and older nodes stay.
        max_candidate_nodes: candidate rows a step, retrieved from the pool by the last token.
        pool_nodes_per_key: nodes the pool keeps for one last token.
        pool_max_keys: last tokens the pool keeps, least recently used out.
        recycle_verified: merge the verified rows with their own predictions into the pool, as the
            draft tree is (the released code does it in part). Pays where the draft tree is small.
        share_pool: keep the pool from one request to the next instead of beginning with an empty
            one. Pays where requests resemble each other; how fast a request is then depends on
            those before it, its output does not.
        seed: of the initial chains, drawn from the prompt. The output never depends on it.
        expansion: what every draft row appends: "greedy" its likeliest successor, "top-k" the
            expansion_k likeliest, "top-p" of these the smallest set whose probability reaches
            expansion_p. `width` limits the children in each case. Beyond "greedy" the logits of all
            rows are needed, which costs time, and the tree is soon as large as max_draft_nodes.
        expansion_k: successors a row at most, 1 to 64.
        expansion_p: above 0, up to 1.
        initialisation: where the first two chains come from: "random" draws one or two tokens of
            the prompt each, "context" takes the prompt's last tokens before its very last, two by
            two, "ner" the named entities and the like in the prompt's text, the last first (see
            `text.entities`). "ner" needs a tokenizer: where only ids are known (an `Engine` of your
            own, `hf.generate`) it is "random".
        layout: how the draft roots lie below the last token: "sibling" side by side, "chained" each
            is read as the token after the root before it, as in the released code.

    Raises:
        ConfigError: a value is out of range, or one step would exceed 256 rows.
    """

    width: int = 4
    depth: int = 6
    max_draft_nodes: int = 96
    max_candidate_nodes: int = 60
    pool_nodes_per_key: int = 60
    pool_max_keys: int = 4096
    recycle_verified: bool = False
    share_pool: bool = False
    seed: int = 0
    expansion: Expansion = "greedy"
    expansion_k: int = 4
    expansion_p: float = 0.8
    initialisation: Initialisation = "random"
    layout: Layout = "sibling"

    def __post_init__(self) -> None:
        check_int("width", self.width, 1, _MAX_TREE_LIMIT)
        check_int("depth", self.depth, 1, _MAX_TREE_LIMIT)
        check_int("max_draft_nodes", self.max_draft_nodes, 1, MAX_TREE_NODES - 1)
        room = MAX_TREE_NODES - 1 - self.max_draft_nodes
        check_int(
            "max_candidate_nodes",
            self.max_candidate_nodes,
            0,
            room,
            f"A step holds {MAX_TREE_NODES} rows: lower max_draft_nodes to raise this limit.",
        )
        check_int("pool_nodes_per_key", self.pool_nodes_per_key, 1, 65536)
        check_int("pool_max_keys", self.pool_max_keys, 1, 1 << 24)
        check_bool("recycle_verified", self.recycle_verified)
        check_bool("share_pool", self.share_pool)
        check_int("seed", self.seed, 0, MAX_SEED)
        check_choice("expansion", self.expansion, get_args(Expansion))
        check_int("expansion_k", self.expansion_k, 1, _MAX_TREE_LIMIT)
        check_float("expansion_p", self.expansion_p, 1e-6, 1.0)
        check_choice("initialisation", self.initialisation, get_args(Initialisation))
        check_choice("layout", self.layout, get_args(Layout))
