"""Where the installed package has its CMake package, headers and libraries for C and C++."""

from __future__ import annotations

from pathlib import Path

import ptd_engine
from ptd_engine.errors import UnavailableError


def cmake_dir() -> Path:
    """The folder with ptdConfig.cmake, for `cmake -Dptd_DIR=...`.

    Raises:
        UnavailableError: this installation has none, as one in place of a source tree.
    """
    package = Path(ptd_engine.__file__).resolve().parent
    folder = package / "lib" / "cmake" / "ptd"
    if not (folder / "ptdConfig.cmake").is_file():
        raise UnavailableError(
            f"{package} has no CMake package: an installation in place (pip install -e, make "
            "install) holds the Python modules alone. Install a wheel, or take the libraries from "
            "the source tree: `cmake -S csrc -B build/cxx`, `cmake --build build/cxx`, `cmake "
            "--install build/cxx --prefix ...`, or add_subdirectory(csrc)."
        )
    return folder
