"""Prompt sets: files, a folder of them, or the public sets by the `datasets` package."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from ptd_engine.cli.prompts import PromptItem, read_prompts
from ptd_engine.errors import PromptError, UnavailableError

_T = TypeVar("_T")
HUB = "hub"
# Chosen evenly from a larger set, as the paper does with GSM8K and MBPP.
_HUB_PROMPTS = 100


@dataclass(frozen=True)
class PromptSet:
    """Prompts under the name of their file or public set."""

    name: str
    items: tuple[PromptItem, ...]


@dataclass(frozen=True)
class _HubSet:
    """A public data set: where it is, and how one of its rows becomes a prompt."""

    path: str
    config: str | None
    split: str
    text: Callable[[Mapping[str, Any]], str]
    all_rows: bool = False


_HUB_SETS = {
    "mt_bench": _HubSet(
        "HuggingFaceH4/mt_bench_prompts", None, "train", lambda row: row["prompt"][0], True
    ),
    "gsm8k_100": _HubSet("openai/gsm8k", "main", "test", lambda row: row["question"]),
    "humaneval": _HubSet(
        "openai/openai_humaneval",
        None,
        "test",
        lambda row: "Complete the following Python function:\n" + row["prompt"],
        True,
    ),
    "mbpp_100": _HubSet(
        "google-research-datasets/mbpp",
        "full",
        "test",
        lambda row: "\n".join([row["text"], *row["test_list"]]),
    ),
}


def add_prompt_set_arguments(parser: argparse.ArgumentParser, *, folder_only: bool = False) -> None:
    """--prompts FILE... or --data DIR, and --limit."""
    source: Any = parser
    if not folder_only:
        source = parser.add_mutually_exclusive_group(required=True)
        source.add_argument(
            "--prompts",
            nargs="+",
            action="extend",
            type=Path,
            metavar="FILE",
            help='JSON lines with "turns" (the first is used) or "prompt"; one set a file',
        )
    source.add_argument(
        "--data",
        metavar="DIR",
        required=folder_only,
        help='a folder of *.jsonl files as for --prompts, or "hub": MT-Bench, GSM8K, HumanEval '
        "and MBPP, downloaded by the package `datasets`",
    )
    parser.add_argument(
        "--limit", type=int, metavar="K", help="prompts of each set, evenly spaced over it"
    )


def load_sets(args: argparse.Namespace) -> list[PromptSet]:
    """The sets that `add_prompt_set_arguments` asked for, cut to --limit.

    Raises:
        PromptError: a file that cannot be read or has a malformed line, a folder without files, a
            limit below 1.
        UnavailableError: the public sets were asked for without `datasets`.
    """
    limit = args.limit
    if limit is not None and limit < 1:
        raise PromptError.for_field("--limit", limit, "an integer >= 1")
    files: Sequence[Path] | None = getattr(args, "prompts", None)
    if files is not None:
        sets = [PromptSet(file.stem, tuple(read_prompts(file))) for file in files]
    elif args.data == HUB:
        sets = from_hub()
    else:
        sets = from_folder(Path(args.data))
    return [PromptSet(s.name, tuple(evenly(s.items, limit))) for s in sets]


def from_folder(folder: Path) -> list[PromptSet]:
    """Every *.jsonl file of a folder, by name. Raises PromptError where there is none."""
    files = sorted(folder.glob("*.jsonl"))
    if not files:
        raise PromptError.for_field(
            "--data", str(folder), "a folder that holds *.jsonl files of prompts", 'Or "hub".'
        )
    return [PromptSet(file.stem, tuple(read_prompts(file))) for file in files]


def from_hub() -> list[PromptSet]:
    """The paper's four public sets: all of MT-Bench and HumanEval, 100 of the others.

    Raises:
        UnavailableError: `datasets` is not installed.
        PromptError: a set could not be fetched.
    """
    try:
        load_dataset = import_module("datasets").load_dataset
    except ImportError as error:
        raise UnavailableError(
            "--data hub needs the package `datasets`: pip install datasets. Or pass a folder of "
            "*.jsonl files."
        ) from error
    sets = []
    for name, source in _HUB_SETS.items():
        try:
            rows = list(load_dataset(source.path, source.config, split=source.split))
        except Exception as error:  # the package raises whatever its transport does
            raise PromptError(
                f"The set {source.path} could not be fetched ({error}). Check the network, or pass "
                "a folder of *.jsonl files to --data."
            ) from error
        chosen = rows if source.all_rows else evenly(rows, _HUB_PROMPTS)
        items = [PromptItem(f"{name}/{i}", source.text(row)) for i, row in enumerate(chosen)]
        sets.append(PromptSet(name, tuple(items)))
    return sets


def evenly(items: Sequence[_T], limit: int | None) -> list[_T]:
    """At most `limit` items, evenly spaced so that every part of the set counts."""
    count = len(items) if limit is None else min(limit, len(items))
    return [items[k * len(items) // count] for k in range(count)]
