"""Measured drafting for predictions: tokens a step and rows a step, and the host's microseconds.

Tokens a step depend on the model and the text, not on the machine: they are read from committed
results of the demo model. Another model accepts more or less.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ptd_engine.errors import ConfigError

RESULTS = Path(__file__).resolve().parent / "results"
DEFAULT_SOURCES = ("paper/report.json", "hybrid/hybrid.json")
HOST_TIMES = "simulate/host_times.json"
PLAIN = "none"


@dataclass(frozen=True)
class Drafting:
    """One drafter at one budget.

    Attributes:
        drafter: as asked for on the command line.
        budget: its candidate rows; None: as that drafter is set.
        rows: mean rows of a step, root included.
        tokens: a step.
        source: the document.
    """

    drafter: str
    budget: int | None
    rows: float
    tokens: float
    source: str


def load_draftings(names: Sequence[str], folder: Path = RESULTS) -> list[Drafting]:
    """What was measured, of `paper`, `decode` and `hybrid` documents; plain decoding is left out.

    Args:
        names: files, below `folder` or anywhere.

    Raises:
        ConfigError: no such file, or a document of another benchmark.
    """
    found: list[Drafting] = []
    for name in names:
        document = read(name, folder)
        kind = document.get("benchmark")
        readers = {
            "paper": _of_paper,
            "decode": _of_decode,
            "hybrid": _of_hybrid,
            "rows_asked": _of_rows_asked,
        }
        if kind not in readers or not document["correct"]:
            raise ConfigError.for_field(
                "--acceptance", name, f"a correct document of {', '.join(readers)}"
            )
        found += readers[kind](document, Path(name).name)
    return found


def read(name: str, folder: Path = RESULTS) -> Mapping[str, Any]:
    """A JSON document, below `folder` or anywhere.

    Raises:
        ConfigError: there is none.
    """
    path = folder / name  # an absolute name stays what it is
    path = path if path.is_file() else Path(name)
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError.for_field("file", name, "a JSON document of `python -m bench`") from error
    if not isinstance(found, dict):
        raise ConfigError.for_field("file", name, "a JSON document of `python -m bench`")
    return found


def _of_paper(document: Mapping[str, Any], source: str) -> list[Drafting]:
    part = next(s for s in document["results"]["sections"] if s["name"] == "greedy")
    rows = [dict(zip(part["columns"], row, strict=True)) for row in part["rows"]]
    return [
        Drafting(r["method"], None, 1 + r["Dft"] + r["Ver"], r["DE"], source)
        for r in rows
        if r["set"] == "all" and r["method"] != PLAIN
    ]


def _of_decode(document: Mapping[str, Any], source: str) -> list[Drafting]:
    total = next(e for e in document["results"]["sets"] if e["prompt_set"] == "total")
    return [
        Drafting(
            d["drafter"],
            None,
            1 + d["mean_draft_nodes"] + d["mean_candidate_nodes"],
            d["decoding_efficiency"],
            source,
        )
        for d in total["drafters"]
    ]


def _of_rows_asked(document: Mapping[str, Any], source: str) -> list[Drafting]:
    """A drafter that sized its trees by predicted costs."""
    results, settings = document["results"], document["settings"]
    label = f"{settings['drafter']} (sized for {settings['shape']} on {settings['gpu']['name']})"
    return [Drafting(label, None, results["mean_rows"], results["tokens_a_step"], source)]


def _of_hybrid(document: Mapping[str, Any], source: str) -> list[Drafting]:
    """Its fixed budgets; the automatic one followed the costs of the machine that measured it."""
    return [
        Drafting(
            "hybrid",
            int(v["name"]),
            1 + v["total"]["mean_rows"],
            v["total"]["decoding_efficiency"],
            source,
        )
        for v in document["results"]["variants"]
        if v["kind"] == "budget" and v["name"].isdecimal()
    ]


@dataclass(frozen=True)
class HostTimes:
    """Microseconds of plan and commit by drafter and rows.

    Attributes:
        by_drafter: name -> rising rows and their times.
        by_rows: of PTD's trees of all sizes, for whoever has no times of its own.
        caches: "warm" or "cold": whether the forward pass runs on the same processor.
    """

    by_drafter: Mapping[str, Sequence[tuple[float, float]]]
    by_rows: Sequence[tuple[float, float]]
    caches: str

    def us(self, drafter: str, rows: float) -> float:
        """Of a step with so many rows."""
        name = drafter.partition(":")[0].partition(" ")[0]
        points = self.by_drafter.get(name) or self.by_rows
        known, times = zip(*points, strict=True)
        if rows > known[-1] and len(known) > 1:  # as steep as before
            slope = (times[-1] - times[-2]) / (known[-1] - known[-2])
            return float(times[-1] + slope * (rows - known[-1]))
        return float(np.interp(rows, known, times))


def load_host_times(name: str = HOST_TIMES, caches: str = "warm") -> HostTimes:
    """Of a `bookkeeping` document.

    Raises:
        ConfigError: no such document.
    """
    document = read(name)
    if document.get("benchmark") != "bookkeeping" or not document["correct"]:
        raise ConfigError.for_field("--host-times", name, "a correct document of bookkeeping")
    key = f"{caches}_caches"

    def point(entry: Mapping[str, Any]) -> tuple[float, float]:
        times = entry[key]
        rows = 1 + times["mean_candidate_nodes"] + times["mean_draft_nodes"]
        return rows, times["total_us"]

    results = document["results"]
    by_drafter: dict[str, list[tuple[float, float]]] = {}
    for entry in results["by_drafter"]:
        by_drafter.setdefault(entry["drafter"].partition(":")[0], []).append(point(entry))
    by_rows = sorted([*map(point, results["by_nodes"]), *by_drafter.pop("ptd", [])])
    return HostTimes({name: sorted(p) for name, p in by_drafter.items()}, by_rows, caches)
