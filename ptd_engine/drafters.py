"""Drafter by name or by configuration: what `LLM.from_pretrained(drafter=...)` accepts.

A drafter can only add rows to a step's tree, so none can change the output.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, get_type_hints

from . import _core
from .config import PTDConfig
from .corpus_file import read_corpus
from .drafter_configs import (
    HybridConfig,
    LookaheadConfig,
    PromptLookupConfig,
    SelfDraftConfig,
    SuffixConfig,
    TokenRecyclingConfig,
)
from .errors import ConfigError

DrafterConfig = (
    PTDConfig
    | LookaheadConfig
    | SelfDraftConfig
    | PromptLookupConfig
    | TokenRecyclingConfig
    | SuffixConfig
    | HybridConfig
)
DrafterSpec = str | DrafterConfig | _core.Drafter

# What a bare "ptd" means. On a GPU 64 rows cost about as much as one, so the paper's tree pays. On
# a CPU every row costs: docs/cpu_tree.md measures this tree among others.
GPU_DEFAULT = PTDConfig()
CPU_DEFAULT = PTDConfig(
    width=1, depth=2, max_draft_nodes=2, max_candidate_nodes=8, recycle_verified=True
)


@dataclass(frozen=True, slots=True)
class DrafterEntry:
    """A drafter: its name, one line for users, and how it is made.

    Attributes:
        config: its settings' class; None: it has none.
        make: builds it from its settings and the model's end-of-sequence ids.
    """

    name: str
    summary: str
    config: type[DrafterConfig] | None
    make: Callable[[Any, Sequence[int]], _core.Drafter]


def _make_ptd(config: PTDConfig, eos_ids: Sequence[int]) -> _core.Drafter:
    return _core.PTDDrafter(**asdict(config), eos_ids=list(eos_ids))


def _make_hybrid(config: HybridConfig, eos_ids: Sequence[int]) -> _core.Drafter:
    return _core.HybridDrafter(**asdict(config), eos_ids=list(eos_ids))


def _from_settings(drafter: Callable[..., _core.Drafter]) -> Callable[..., _core.Drafter]:
    return lambda config, _eos_ids: drafter(**asdict(config))


def _make_self_draft(config: SelfDraftConfig, _eos_ids: Sequence[int]) -> _core.Drafter:
    corpus = {} if config.corpus is None else read_corpus(config.corpus, config.ngram)
    return _core.SelfDraftDrafter(**{**asdict(config), "corpus": corpus})


REGISTERED = (
    DrafterEntry(
        "none",
        "plain decoding, one token a step",
        None,
        lambda _config, _eos: _core.AutoregressiveDrafter(),
    ),
    DrafterEntry("ptd", "Progressive Tree Drafting", PTDConfig, _make_ptd),
    DrafterEntry(
        "prompt-lookup",
        "copies what followed the last tokens where they stood before",
        PromptLookupConfig,
        _from_settings(_core.PromptLookupDrafter),
    ),
    DrafterEntry(
        "token-recycling",
        "a tree of each token's last seen best successors",
        TokenRecyclingConfig,
        _from_settings(_core.TokenRecyclingDrafter),
    ),
    DrafterEntry(
        "suffix",
        "the most frequent continuations of the longest suffixes seen before",
        SuffixConfig,
        _from_settings(_core.SuffixDrafter),
    ),
    DrafterEntry(
        "lookahead",
        "n-grams of a Jacobi window (LADE)",
        LookaheadConfig,
        _from_settings(_core.LookaheadDrafter),
    ),
    DrafterEntry(
        "self-draft",
        "n-grams of branches drafted beside the text, of the context and of a corpus",
        SelfDraftConfig,
        _make_self_draft,
    ),
    DrafterEntry(
        "hybrid",
        "one tree of the likeliest tokens from many sources, which learns whom to believe",
        HybridConfig,
        _make_hybrid,
    ),
)


def resolve(spec: DrafterSpec, device_type: str) -> DrafterSpec:
    """Turn a name into the settings it means on this device; "none" and the rest stay as they are.

    Args:
        spec: "NAME", "NAME:OPTION=VALUE,..." (options that are not given keep the published value),
            settings, or a Drafter object.

    Raises:
        ConfigError: an unknown name or option, a bad value, or an object that is no drafter.
    """
    if isinstance(spec, DrafterConfig | _core.Drafter):
        return spec
    if not isinstance(spec, str):
        raise ConfigError.for_field("drafter", spec, _allowed())
    name, colon, options = spec.partition(":")
    entry = _entry(name)
    if entry.config is None:
        if colon:
            raise ConfigError.for_field("drafter", spec, f"{name!r}: it has no options")
        return name
    if colon:
        return _parse(entry.config, options)
    if name == "ptd":
        return CPU_DEFAULT if device_type == "cpu" else GPU_DEFAULT
    return entry.config()


def make_drafter(
    spec: DrafterSpec, *, device_type: str, eos_ids: Sequence[int] = ()
) -> _core.Drafter:
    """Build the drafter that `spec` means on a device of this type ("cpu" or "cuda").

    Args:
        spec: see `resolve`; a ready drafter is returned as it is.
        device_type: decides what a bare "ptd" means.
        eos_ids: tokens after which PTD drafts nothing.

    Raises:
        ConfigError: see `resolve`.
    """
    resolved = resolve(spec, device_type)
    if isinstance(resolved, _core.Drafter):
        return resolved
    if isinstance(resolved, str):
        return _entry(resolved).make(None, eos_ids)
    made_by = {entry.config: entry for entry in REGISTERED}
    return made_by[type(resolved)].make(resolved, eos_ids)


def _allowed() -> str:
    names = ", ".join(repr(entry.name) for entry in REGISTERED)
    return f"one of {names}, its settings (PTDConfig, ...) or a Drafter object"


def _entry(name: str) -> DrafterEntry:
    for entry in REGISTERED:
        if entry.name == name:
            return entry
    raise ConfigError.for_field("drafter", name, _allowed())


def _parse(config: type[DrafterConfig], options: str) -> DrafterConfig:
    defaults = asdict(config())
    kinds = get_type_hints(config)
    values: dict[str, Any] = {}
    for option in filter(None, options.split(",")):
        key, _, value = option.partition("=")
        if key not in defaults:
            raise ConfigError.for_field("drafter option", key, ", ".join(defaults))
        values[key] = _value(key, kinds[key], value)
    return config(**values)


def _value(key: str, kind: object, text: str) -> object:
    if kind is bool:
        if text not in ("true", "false"):
            raise ConfigError.for_field(key, text, "true or false")
        return text == "true"
    if kind is int or kind is float:
        try:
            return kind(text)
        except ValueError as error:
            name = "an integer" if kind is int else "a number"
            raise ConfigError.for_field(key, text, name) from error
    return text
