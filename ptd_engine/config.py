"""What a user may set: drafting (`PTDConfig`) and sampling (`SamplingParams`), checked at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from .errors import ConfigError

Verification = Literal["coupled", "recursive"]

MAX_TREE_NODES = 256  # rows of one step, root included
_MAX_TREE_LIMIT = 64  # width and depth
_MAX_SEED = 2**64 - 1


def _check_int(field: str, value: object, low: int, high: int, hint: str = "") -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ConfigError.for_field(field, value, f"an integer from {low} to {high}", hint)


def _check_float(field: str, value: object, low: float, high: float, hint: str = "") -> None:
    ok = isinstance(value, int | float) and not isinstance(value, bool)
    if not ok or not low <= value <= high:  # type: ignore[operator]  # NaN fails both bounds
        limit = f"a finite number from {low:g} to {high:g}"
        raise ConfigError.for_field(field, value, limit, hint)


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
        seed: of the initial chains, drawn from the prompt. The output never depends on it.

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
    seed: int = 0

    def __post_init__(self) -> None:
        _check_int("width", self.width, 1, _MAX_TREE_LIMIT)
        _check_int("depth", self.depth, 1, _MAX_TREE_LIMIT)
        _check_int("max_draft_nodes", self.max_draft_nodes, 1, MAX_TREE_NODES - 1)
        room = MAX_TREE_NODES - 1 - self.max_draft_nodes
        _check_int(
            "max_candidate_nodes",
            self.max_candidate_nodes,
            0,
            room,
            f"A step holds {MAX_TREE_NODES} rows: lower max_draft_nodes to raise this limit.",
        )
        _check_int("pool_nodes_per_key", self.pool_nodes_per_key, 1, 65536)
        _check_int("pool_max_keys", self.pool_max_keys, 1, 1 << 24)
        if not isinstance(self.recycle_verified, bool):
            raise ConfigError.for_field("recycle_verified", self.recycle_verified, "True or False")
        _check_int("seed", self.seed, 0, _MAX_SEED)


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one request is decoded. The drafter never changes what these say.

    Attributes:
        max_new_tokens: most tokens to generate; 0 returns at once, None goes on to the context
            limit.
        temperature: 0 is greedy (ties to the lowest token id).
        top_k: keep exactly the k most likely tokens; 0 is off.
        top_p: keep the smallest set of most likely tokens with at least this mass; 1 is off.
        min_p: keep tokens at least this fraction as likely as the likeliest; 0 is off.
        seed: the random numbers are a function of (seed, absolute position) alone, so speculative
            and plain sampling agree token for token wherever the backend rounds a row alike.
        stop_token_ids: more token ids that end the output (the id itself is kept), besides the
            model's end-of-sequence ids.
        ignore_eos: the model's end-of-sequence ids do not stop; `stop_token_ids` and `stop` still
            do.
        stop: a string, or several, that ends the output where it appears in the text, also across
            tokens. The text is cut in front of the earliest match (the longest of those that begin
            there); the token that completed it stays in the ids. Special tokens have no text: name
            them in `stop_token_ids`.
        include_stop_str: cut behind the match instead.
        verification: "coupled", or "recursive" (the paper's Algorithm 2: the same law, other random
            numbers; slower, for study).

    Filters apply in the order temperature, top_k, top_p, min_p.

    Raises:
        ConfigError: a value is out of range, or a filter is set although temperature is 0.
    """

    max_new_tokens: int | None = 128
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    stop: str | Sequence[str] = ()
    include_stop_str: bool = False
    verification: Verification = "coupled"

    def __post_init__(self) -> None:
        if self.max_new_tokens is not None:
            hint = "None goes on to the context limit."
            _check_int("max_new_tokens", self.max_new_tokens, 0, 2**31 - 1, hint)
        _check_float("temperature", self.temperature, 0.0, 1e6, "0 is greedy decoding.")
        _check_int("top_k", self.top_k, 0, 2**24, "0 switches it off.")
        _check_float("top_p", self.top_p, 0.0, 1.0, "1 switches it off.")
        if self.top_p == 0.0:
            raise ConfigError.for_field(
                "top_p", self.top_p, "a number above 0, up to 1", "1 switches it off."
            )
        _check_float("min_p", self.min_p, 0.0, 1.0, "0 switches it off.")
        _check_int("seed", self.seed, 0, _MAX_SEED)
        if self.verification not in ("coupled", "recursive"):
            raise ConfigError.for_field(
                "verification", self.verification, "'coupled' or 'recursive'"
            )
        self._check_stop_ids()
        self._check_stop_strings()
        for field in ("ignore_eos", "include_stop_str"):
            if not isinstance(getattr(self, field), bool):
                raise ConfigError.for_field(field, getattr(self, field), "True or False")
        self._check_contradictions()

    def _check_stop_ids(self) -> None:
        ids = self.stop_token_ids
        ok = isinstance(ids, Sequence) and not isinstance(ids, str | bytes)
        if not ok or not all(isinstance(i, int) and not isinstance(i, bool) for i in ids):
            raise ConfigError.for_field(
                "stop_token_ids", ids, "a list of token ids", "Stop strings are not token ids."
            )
        for i in ids:
            _check_int("stop_token_ids", i, 0, 2**31 - 1)

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """`stop` as a tuple, whichever form it was given in."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    def _check_stop_strings(self) -> None:
        hint = "Token ids go into stop_token_ids."
        ok = isinstance(self.stop, Sequence) and not isinstance(self.stop, bytes | bytearray)
        if not ok:
            raise ConfigError.for_field("stop", self.stop, "a string or a list of strings", hint)
        for index, item in enumerate(self.stop_strings):
            field = "stop" if isinstance(self.stop, str) else f"stop[{index}]"
            if not isinstance(item, str):
                raise ConfigError.for_field(field, item, "a string", hint)
            if not item:
                raise ConfigError.for_field(
                    field, item, "at least one character", "Leave it out to stop nowhere."
                )

    def _check_contradictions(self) -> None:
        if self.temperature > 0:
            return
        for field, value, off in (
            ("top_p", self.top_p, 1.0),
            ("min_p", self.min_p, 0.0),
        ):
            if value != off:
                raise ConfigError.for_field(
                    field,
                    value,
                    f"{off:g} while temperature is 0",
                    "Greedy decoding takes the likeliest token: set temperature > 0 to sample.",
                )
        if self.top_k > 1:
            raise ConfigError.for_field(
                "top_k",
                self.top_k,
                "0 or 1 while temperature is 0",
                "Greedy decoding takes the likeliest token: set temperature > 0 to sample.",
            )
