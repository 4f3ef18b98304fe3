"""For a source tree that is compiled in place and not installed: on PYTHONPATH, Python imports this
first and then finds ptd_engine.triton_kernels where it lies, beside ptd_engine.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

_PACKAGE = "ptd_engine.triton_kernels"
_FOLDER = Path(__file__).resolve().parents[2] / "triton_kernels"


class _Finder:
    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != _PACKAGE:
            return None
        source = _FOLDER / "__init__.py"
        return spec_from_file_location(name, source, submodule_search_locations=[str(_FOLDER)])


sys.meta_path.append(_Finder)  # last: where the package is installed, it is found before
