"""The file of runs: one JSON line a finished unit, so that a run that was killed can go on.

A unit is one prompt of one experiment: plain decoding and every drafter on it, in turns. It is
found again by a hash of everything its result depends on, so a change of any setting runs it anew.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench.paired import PLAIN, Mismatch, PromptRuns, Run
from ptd_engine.errors import ConfigError
from ptd_engine.metrics import GenerationStats


@dataclass(frozen=True)
class Unit:
    """One finished unit.

    Attributes:
        key: hash of its settings.
        experiment: its name.
        prompt: every engine's runs, of which a line keeps the median one.
        mismatches: outputs that differ from plain decoding's.
        texts: what was written, by label, where it is not plain decoding's own text.
        similarity: by label, by length of n-gram: for each step the share of repeated draft rows.
        commit: of the code that ran it.
    """

    key: str
    experiment: str
    prompt: PromptRuns
    mismatches: Sequence[Mismatch]
    texts: Mapping[str, str]
    similarity: Mapping[str, Mapping[str, Sequence[float]]] = field(default_factory=dict)
    commit: str | None = None

    def differs(self, label: str) -> bool:
        """Whether this output, or plain decoding's own, is not what plain decoding wrote first."""
        return any(m.drafter in (label, PLAIN) for m in self.mismatches)

    def as_dict(self) -> dict[str, Any]:
        """The line."""
        prompt = self.prompt
        return {
            "key": self.key,
            "experiment": self.experiment,
            "commit": self.commit,
            "prompt_set": prompt.prompt_set,
            "prompt_id": prompt.prompt_id,
            "prompt_ids": prompt.prompt_ids,
            "runs": {label: asdict(_median(runs)) for label, runs in prompt.runs.items()},
            "mismatches": [asdict(m) for m in self.mismatches],
            "texts": dict(self.texts),
            "similarity": {k: dict(v) for k, v in self.similarity.items()},
        }

    @classmethod
    def from_dict(cls, row: Mapping[str, Any]) -> Unit:
        """Read a line back."""
        runs = {
            label: [Run(r["token_ids"], _stats(r["stats"]), tuple(r["step_tokens"]))]
            for label, r in row["runs"].items()
        }
        prompt = PromptRuns(row["prompt_set"], row["prompt_id"], row["prompt_ids"], runs)
        return cls(
            row["key"],
            row["experiment"],
            prompt,
            [Mismatch(**m) for m in row["mismatches"]],
            row["texts"],
            row["similarity"],
            row["commit"],
        )


class Store:
    """Units by key, each written to the file as soon as it is finished."""

    def __init__(self, path: Path, *, resume: bool) -> None:
        """Open the file.

        Raises:
            ConfigError: it holds runs and `resume` was not asked for, or a line in its middle is no
                JSON. A last line that was cut off is dropped.
        """
        self._path = path
        self._units: dict[str, Unit] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            self._load(resume)

    def find(self, key: str) -> Unit | None:
        """The unit of these settings, if it was run."""
        return self._units.get(key)

    def add(self, unit: Unit) -> None:
        """Keep a unit, on the disk when this returns."""
        line = json.dumps(unit.as_dict(), allow_nan=False)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())
        self._units[unit.key] = Unit.from_dict(json.loads(line))

    def _load(self, resume: bool) -> None:
        data = self._path.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole and not resume:
            raise ConfigError(
                f"{self._path} holds runs already: pass --resume to go on with them, or another "
                "folder to --out."
            )
        for number, line in enumerate(data[:whole].splitlines(), start=1):
            try:
                unit = Unit.from_dict(json.loads(line))
            except (ValueError, KeyError, TypeError) as error:
                raise ConfigError(
                    f"{self._path}, line {number}: no finished run ({error}). Take the line out."
                ) from error
            self._units[unit.key] = unit
        if whole < len(data):  # killed while it wrote: what follows must begin a line
            with self._path.open("r+b") as file:
                file.truncate(whole)


def settings_key(settings: Mapping[str, Any]) -> str:
    """Hash of everything a unit depends on."""
    text = json.dumps(settings, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def _median(runs: Sequence[Run]) -> Run:
    ordered = sorted(runs, key=lambda run: run.stats.total_time_s)
    return ordered[(len(ordered) - 1) // 2]


def _stats(row: Mapping[str, Any]) -> GenerationStats:
    return GenerationStats(**{**row, "acceptance_histogram": tuple(row["acceptance_histogram"])})
