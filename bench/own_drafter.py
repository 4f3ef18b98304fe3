"""A drafter of your own for the benchmarks: "file:PATH:CLASS"."""

from __future__ import annotations

import hashlib
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from ptd_engine import _core
from ptd_engine.errors import ConfigError

PREFIX = "file:"


def load(label: str) -> _core.Drafter:
    """An object of the class, made without arguments; each call runs the file anew.

    Raises:
        ConfigError: no such file or class, or one that is no `_core.Drafter`.
    """
    path, _, name = label.removeprefix(PREFIX).rpartition(":")
    file = Path(path)
    spec = spec_from_file_location(file.stem, file) if file.suffix == ".py" else None
    if spec is None or spec.loader is None or not file.is_file():
        raise ConfigError.for_field("drafter", label, "file:PATH:CLASS, PATH a .py file")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    made = getattr(module, name, None)
    if not (isinstance(made, type) and issubclass(made, _core.Drafter)):
        raise ConfigError.for_field(
            "drafter", label, f"a class of {file.name} derived from ptd_engine._core.Drafter"
        )
    return made()


def fingerprint(label: str) -> str:
    """Hash of the file: results of another text are another drafter's."""
    path = label.removeprefix(PREFIX).rpartition(":")[0]
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16]
