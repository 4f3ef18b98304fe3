"""The C++ project, built once: where `make install` or pip built it, else in build/embedding."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

_HERE = Path(__file__).resolve().parent
for _folder in (_HERE, _HERE.parent):
    if str(_folder) not in sys.path:
        sys.path.insert(0, str(_folder))

from c_library import Library  # noqa: E402

ROOT = _HERE.parents[1]


def call(*command: str | Path, cwd: Path = ROOT, stdin: str | None = None) -> str:
    """Run a command; its standard output, or a failure that shows all it said."""
    result = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        input=stdin,
        stdin=subprocess.DEVNULL if stdin is None else None,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
    return result.stdout


@dataclass(frozen=True)
class BuildTree:
    """A folder that CMake has configured.

    Attributes:
        path: the folder.
        generator: arguments for the configuration of others like it.
    """

    path: Path
    generator: tuple[str, ...]

    def build(self, *targets: str) -> Path:
        """Bring targets up to date; returns the folder."""
        jobs = str(os.cpu_count() or 1)
        call("cmake", "--build", self.path, "--parallel", jobs, "--target", *targets)
        return self.path


@pytest.fixture(scope="session")
def build_tree() -> BuildTree:
    """The project's build folder; skips where nothing can be compiled."""
    for tool in ("cmake", "ninja", "c++"):
        if shutil.which(tool) is None:
            pytest.skip(f"nothing can be compiled here: there is no {tool} on PATH")
    generator = ("-G", "Ninja")
    installed = ROOT / "build" / "cmake" / f"python-{sys.implementation.cache_tag}"
    if (installed / "CMakeCache.txt").exists():
        return BuildTree(installed, generator)
    own = ROOT / "build" / "embedding"
    settings = ("-DCMAKE_BUILD_TYPE=Release", "-DPTD_BUILD_TESTS=OFF", "-DPTD_CUDA=0")
    call("cmake", "-S", ROOT / "csrc", "-B", own, *generator, *settings)
    return BuildTree(own, generator)


@pytest.fixture(scope="session")
def library_path(build_tree: BuildTree) -> Path:
    """libptd.so."""
    return build_tree.build("ptd_c") / "libptd.so"


@pytest.fixture(scope="session")
def library(library_path: Path) -> Library:
    """libptd.so, for Python."""
    return Library(library_path)


@pytest.fixture(scope="session")
def prefix(build_tree: BuildTree, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where `cmake --install` put headers, libraries and CMake package."""
    cache = (build_tree.path / "CMakeCache.txt").read_text(encoding="utf-8")
    has_cuda = re.search(r"^CMAKE_CUDA_COMPILER:\w+=.*[^D]$", cache, re.MULTILINE) is not None
    build_tree.build("ptd_core", "ptd_cpu", "ptd_c", *(["ptd_cuda"] if has_cuda else []))
    place = tmp_path_factory.mktemp("an installation")
    call("cmake", "--install", build_tree.path, "--prefix", place, "--component", "development")
    return place


@pytest.fixture(scope="session")
def examples(prefix: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the programs of examples/, built against the installation."""
    folder = tmp_path_factory.mktemp("examples")
    found = f"-DCMAKE_PREFIX_PATH={prefix}"
    call("cmake", "-G", "Ninja", "-S", ROOT / "examples", "-B", folder, found)
    call("cmake", "--build", folder, "--parallel", str(os.cpu_count() or 1))
    return folder
