"""Settings of the drafters besides PTD, one frozen dataclass each (PTD's own is in `config`).

Every default is the published one. A drafter only adds rows to a step's tree: no setting can change
the output, and `seed` fields decide the speed of a run alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from ptd_engine.checks import MAX_SEED, check_bool, check_float, check_int
from ptd_engine.errors import ConfigError

MAX_TREE_NODES = 256  # rows of one step, root included
MAX_TREE_DEPTH = 64  # hops from the root to the deepest row
_MOST_KEYS = 1 << 24


def check_rows(field: str, rows: int, formula: str) -> None:
    """Raise ConfigError where a drafter's largest step would not fit into MAX_TREE_NODES rows."""
    if rows > MAX_TREE_NODES - 1:
        raise ConfigError(
            f"{field} asks for {rows} rows a step ({formula}): allowed is at most "
            f"{MAX_TREE_NODES - 1}. Choose smaller values."
        )


def _window_rows(levels: int, columns: int) -> list[int]:
    """Rows of a level window with 1, 2, ... `levels` levels; the last is the full one's."""
    return [
        columns + levels - 1 - filled + (filled - 1) * (columns + levels - filled)
        for filled in range(1, levels + 1)
    ]


@dataclass(frozen=True, slots=True)
class LookaheadConfig:
    """Lookahead decoding (LADE; Fu et al., 2024): n-grams of a Jacobi window, verified as chains.

    Attributes:
        level: length N of an n-gram, its key included; the window holds N - 1 levels. 3 to 16.
        window: columns W of the window.
        guesses: n-grams G kept for one last token and verified as chains, least recently used out.
        prompt_ngrams: put the n-grams of prompt and output into the pool too.
        faithful: credit at most N - 1 tokens a step, as the released program does, which drops the
            model's own token behind a chain that was accepted whole.
        pool_max_keys: last tokens the pool keeps, least recently used out.
        seed: of the window's first tokens, drawn from the prompt.

    Raises:
        ConfigError: a value is out of range, or one step would exceed 256 rows or 64 in depth.
    """

    level: int = 5
    window: int = 15
    guesses: int = 15
    prompt_ngrams: bool = False
    faithful: bool = False
    pool_max_keys: int = 4096
    seed: int = 0

    def __post_init__(self) -> None:
        check_int("level", self.level, 3, 16)
        check_int("window", self.window, 1, MAX_TREE_NODES)
        check_int("guesses", self.guesses, 1, MAX_TREE_NODES)
        check_bool("prompt_ngrams", self.prompt_ngrams)
        check_bool("faithful", self.faithful)
        check_int("pool_max_keys", self.pool_max_keys, 1, _MOST_KEYS)
        check_int("seed", self.seed, 0, MAX_SEED)
        n, w, g = self.level, self.window, self.guesses
        depth = w + n - 3  # of the window's first chain, and of its last level
        if depth > MAX_TREE_DEPTH:
            limit = f"at most {MAX_TREE_DEPTH - n + 3} at level={n}: a step's tree has 64 levels"
            raise ConfigError.for_field("window", w, limit)
        rows = _window_rows(n - 1, w)
        check_rows(
            "LookaheadConfig",
            max(*rows, rows[-1] + g * (n - 1)),
            "(N-1)*W - 1 of the window, G*(N-1) of the guesses",
        )


@dataclass(frozen=True, slots=True)
class SelfDraftConfig:
    """Self-Draft (Gao et al., 2024): branches drafted beside the text, their n-grams verified.

    Attributes:
        branches: drafted beside each other; one continues the text, the others begin with one or
            two tokens of the prompt that perturb it.
        length: tokens of a branch that begins with two. 3 to 64.
        ngram: tokens of the n-grams taken from branches, context and predictions, the last token
            that they are kept for not counted. 2 to length - 1.
        ngrams_per_key: n-grams kept for one last token and verified as chains, least recently used
            out.
        corpus: path of a JSON file {"token id": [[the `ngram` token ids that follow], ...]}, the
            likeliest first; None: none. It is read once, when the drafter is made.
        corpus_candidates: chains a step taken from the corpus, those the cache has left out.
        faithful: credit at most `ngram` tokens a step, as the released program does, which drops
            the model's own token behind a chain that was accepted whole.
        pool_max_keys: last tokens the cache keeps, least recently used out.
        seed: of the tokens that branches begin with, drawn from the prompt.

    Raises:
        ConfigError: a value is out of range, or one step would exceed 256 rows.
    """

    branches: int = 6
    length: int = 6
    ngram: int = 4
    ngrams_per_key: int = 10
    corpus: str | None = None
    corpus_candidates: int = 3
    faithful: bool = False
    pool_max_keys: int = 4096
    seed: int = 0

    def __post_init__(self) -> None:
        check_int("branches", self.branches, 1, 64)
        check_int("length", self.length, 3, 64)
        check_int("ngram", self.ngram, 2, self.length - 1, "A branch must hold an n-gram.")
        check_int("ngrams_per_key", self.ngrams_per_key, 1, MAX_TREE_NODES)
        if self.corpus is not None and not isinstance(self.corpus, str):
            raise ConfigError.for_field("corpus", self.corpus, "a path as a string, or None")
        check_int("corpus_candidates", self.corpus_candidates, 0, MAX_TREE_NODES)
        check_bool("faithful", self.faithful)
        check_int("pool_max_keys", self.pool_max_keys, 1, _MOST_KEYS)
        check_int("seed", self.seed, 0, MAX_SEED)
        chains = self.ngrams_per_key + (self.corpus_candidates if self.corpus is not None else 0)
        rows = _window_rows(self.length - 1, self.branches)
        check_rows(
            "SelfDraftConfig",
            self.branches - 1 + max(*rows, rows[-1] + chains * self.ngram),
            "branches*length - 2 of the branches, ngram of each chain",
        )


@dataclass(frozen=True, slots=True)
class PromptLookupConfig:
    """Prompt lookup (Saxena, 2023): what followed the last tokens where they stood before.

    Attributes:
        max_ngram: longest run of last tokens to look for; shorter ones follow down to one.
        max_candidate_nodes: tokens copied from behind the first match.

    Raises:
        ConfigError: a value is out of range.
    """

    max_ngram: int = 3
    max_candidate_nodes: int = 10

    def __post_init__(self) -> None:
        check_int("max_ngram", self.max_ngram, 1, 64)
        check_int("max_candidate_nodes", self.max_candidate_nodes, 1, 64)


@dataclass(frozen=True, slots=True)
class TokenRecyclingConfig:
    """Token Recycling (Luo et al., 2024): each token's last seen best successors, as a static tree.

    Attributes:
        max_candidate_nodes: nodes of the tree.
        successors: ids kept for a token, best first.
        warm: keep the successors from one request to the next.

    Raises:
        ConfigError: a value is out of range.
    """

    max_candidate_nodes: int = 80
    successors: int = 8
    warm: bool = False

    def __post_init__(self) -> None:
        check_int("max_candidate_nodes", self.max_candidate_nodes, 1, MAX_TREE_NODES - 1)
        check_int("successors", self.successors, 1, 32)
        check_bool("warm", self.warm)


@dataclass(frozen=True, slots=True)
class SuffixConfig:
    """Suffix decoding (Oliaro et al., 2024): continuations of the longest suffixes seen before.

    Attributes:
        max_candidate_nodes: nodes of a step's tree.
        max_depth: most tokens of a match and its continuation together.
        factor: at most factor * (length of the match) tokens are drafted.
        min_probability: continuations less probable (by their counts) are left out.
        as_tree: draft a tree, best first; else the single most probable path.
        index_tokens: most tokens of earlier requests' outputs that are kept for later ones; the
            older half goes when the younger one is full. 0 keeps none. About 200 bytes a token.

    Raises:
        ConfigError: a value is out of range.
    """

    max_candidate_nodes: int = 32
    max_depth: int = 64
    factor: float = 1.0
    min_probability: float = 0.1
    as_tree: bool = True
    index_tokens: int = 0

    def __post_init__(self) -> None:
        check_int("max_candidate_nodes", self.max_candidate_nodes, 1, MAX_TREE_NODES - 1)
        check_int("max_depth", self.max_depth, 2, 64)
        check_float("factor", self.factor, 0.01, 64.0)
        check_float("min_probability", self.min_probability, 0.0, 1.0)
        check_bool("as_tree", self.as_tree)
        check_int("index_tokens", self.index_tokens, 0, 1 << 26)


@dataclass(frozen=True, slots=True)
class HybridConfig:
    """Hybrid drafting: one tree from many sources, best path first.

    Sources are the n-grams of prompt and output, the model's likeliest tokens last seen after the
    last one to four tokens (in any row of any step), its runners-up, and PTD's draft tree where it
    has rows. How far each is to be believed is learned during the request.

    Attributes:
        max_candidate_nodes: most nodes of a step's tree.
        auto_budget: take as many of them as promise more tokens a second, by what a step of so many
            rows takes (measured when the engine is made) and by the nodes' probabilities; none,
            where nothing pays. False: always max_candidate_nodes.
        max_draft_nodes: rows of PTD's draft tree besides, 0 for none. They only pay in later steps.
        width, depth: of that tree, see PTDConfig.
        successors: likeliest tokens remembered of a row, 1 to 8.
        prompt_outputs: remember those of the prompt's rows, too: better drafts in the first steps
            for a longer prefill.
        keep_statistics: what was learned about the sources stays from one request to the next.
        keep_tables: what the sources remember of prompts and outputs stays, too: drafts of one
            request come from all earlier ones.
        table_entries: contexts that each of two tables remembers; least recently used out.
        seed: of the draft tree's first tokens, drawn from the prompt.

    Raises:
        ConfigError: a value is out of range, or one step would exceed 256 rows.
    """

    max_candidate_nodes: int = 64
    auto_budget: bool = True
    max_draft_nodes: int = 0
    width: int = 1
    depth: int = 6
    successors: int = 8
    prompt_outputs: bool = False
    keep_statistics: bool = False
    keep_tables: bool = False
    table_entries: int = 32768
    seed: int = 0

    def __post_init__(self) -> None:
        check_int("max_candidate_nodes", self.max_candidate_nodes, 1, MAX_TREE_NODES - 1)
        room = MAX_TREE_NODES - 1 - self.max_candidate_nodes
        check_int("max_draft_nodes", self.max_draft_nodes, 0, room)
        check_int("width", self.width, 1, 64)
        check_int("depth", self.depth, 1, 64)
        check_int("successors", self.successors, 1, 8)
        check_bool("prompt_outputs", self.prompt_outputs)
        check_bool("auto_budget", self.auto_budget)
        check_bool("keep_statistics", self.keep_statistics)
        check_bool("keep_tables", self.keep_tables)
        check_int("table_entries", self.table_entries, 16, 1 << 24)
        check_int("seed", self.seed, 0, MAX_SEED)
