"""Lets atheris (coverage-guided, not among the dependencies) look for inputs that fail:

    pip install atheris, then in tests/: python -m fuzz.explore request 600 [more libFuzzer flags]

Found inputs go to build/fuzz/python/<target>/; what fails ends the program with its traceback. To
keep what is worth it: `-merge=1` with a second folder, then copy that one to tests/fuzz/corpus.
"""

from __future__ import annotations

import logging
import resource
import sys
import warnings
from pathlib import Path

import atheris  # type: ignore[import-not-found]

with atheris.instrument_imports(include=["ptd_engine"]):
    from fuzz.targets import TARGETS

ROOT = Path(__file__).parents[2]


def main() -> None:
    name, seconds, *flags = sys.argv[1:]
    # What asks for more is a finding, not a machine without memory.
    resource.setrlimit(resource.RLIMIT_AS, (16 << 30, 16 << 30))
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    found = ROOT / "build/fuzz/python" / name
    found.mkdir(parents=True, exist_ok=True)
    limits = [f"-max_total_time={seconds}", "-max_len=1024", "-timeout=20", "-rss_limit_mb=6000"]
    kept = ROOT / "tests/fuzz/corpus" / name
    folders = [str(folder) for folder in (found, kept) if folder.is_dir()]
    merging = any(flag.startswith("-merge") for flag in flags)
    arguments = [*limits, f"-artifact_prefix={found.parent}/", *flags]
    atheris.Setup([sys.argv[0], *arguments, *([] if merging else folders)], TARGETS[name])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
