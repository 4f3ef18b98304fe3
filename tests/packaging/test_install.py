"""A source distribution builds into a wheel that works elsewhere, from Python and from C++."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LICENCES = ("LICENSE", "NOTICE", "THIRD_PARTY_LICENSES.md")
SOURCES = (
    *("pyproject.toml", "setup.py", "MANIFEST.in", *LICENCES, "CHANGELOG.md"),
    *("csrc", "examples", "tests/packaging"),
)

LOAD_FOR_C = """
import ctypes
from pathlib import Path
import ptd_engine

library = ctypes.CDLL(str(Path(ptd_engine.__file__).parent / "lib" / "libptd.so"))
library.ptd_version.restype = ctypes.c_char_p
assert library.ptd_version().decode() == ptd_engine.__version__
"""

SMOKE = Path(__file__).with_name("smoke.py")

CONSUMER_CMAKE = """
cmake_minimum_required(VERSION 3.25)
project(consumer LANGUAGES CXX)
find_package(ptd {version} CONFIG REQUIRED COMPONENTS core cpu c)
add_executable(consumer main.cpp)
target_link_libraries(consumer PRIVATE ptd::core)
"""

CONSUMER_SOURCE = """
#include <cstdio>

#include "ptd/candidate_pool.h"
#include "ptd/draft_tree.h"

int main() {
  ptd::DraftTree tree(2, 3, 16);
  tree.init({{5, 6}, {7}});
  ptd::CandidatePool pool;
  pool.merge(tree);
  std::vector<ptd::CandidateNode> nodes;
  pool.retrieve(5, 4, nodes);
  std::printf("%d nodes, first %d\\n", static_cast<int>(nodes.size()), nodes.at(0).token);
}
"""


@dataclass(frozen=True)
class Installation:
    """A wheel, and a fresh environment that it was installed into."""

    sdist_names: list[str]
    wheel: Path
    python: Path
    package_dir: Path


def call(*command: str | Path, cwd: Path, **environment: str) -> str:
    """Run a command; its output, or a failure that shows it."""
    result = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, f"{command}\n{result.stdout}"
    return result.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """The repository -> sdist -> wheel -> fresh venv, below a path with spaces.

    The new venv sees the dependencies of this one through a .pth file, not ptd_engine itself: pth
    files of a folder that a pth file adds are not read.
    """
    work = tmp_path_factory.mktemp("a folder ä")
    tree = work / "tree"
    tree.mkdir()
    for name in (*SOURCES, *(path.name for path in ROOT.glob("README.md"))):
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, tree / name)
    ignore = shutil.ignore_patterns("__pycache__", "*.so", "include", "lib")
    for package in ("ptd_engine", "triton_kernels"):
        shutil.copytree(ROOT / package, tree / package, ignore=ignore)

    make_sdist = "from setuptools import build_meta; build_meta.build_sdist('../sdist')"
    call(sys.executable, "-c", make_sdist, cwd=tree)
    (sdist,) = (work / "sdist").glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        sdist_names = [name.split("/", 1)[-1] for name in archive.getnames()]

    pip = (sys.executable, "-m", "pip", "--no-input", "--disable-pip-version-check")
    offline = ("--no-deps", "--no-index")
    make_wheel = ("wheel", *offline, "--no-build-isolation", "--wheel-dir", work / "dist", sdist)
    # Not optimised, and without CUDA kernels: what is tested here does not depend on it, and it
    # compiles in half the time.
    call(*pip, *make_wheel, cwd=work, CMAKE_ARGS="-DCMAKE_BUILD_TYPE=None", PTD_CUDA="0")
    (wheel,) = (work / "dist").glob("*.whl")

    venv.create(work / "venv", with_pip=False)
    python = work / "venv" / "bin" / "python"
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site_packages = work / "venv" / "lib" / version / "site-packages"
    paths = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (site_packages / "dependencies.pth").write_text("\n".join(sorted(paths)), encoding="utf-8")
    call(*pip, "--python", python, "install", *offline, wheel, cwd=work)
    return Installation(sdist_names, wheel, python, site_packages / "ptd_engine")


def test_sdist_has_what_a_build_needs(installed: Installation) -> None:
    wanted = {"csrc/CMakeLists.txt", "csrc/include/ptd/types.h", "LICENSE", "pyproject.toml"}
    # The documentation builds the examples; cibuildwheel tests the wheels of an sdist by the file.
    wanted |= {"examples/CMakeLists.txt", "tests/packaging/smoke.py"}
    assert wanted <= set(installed.sdist_names)
    tests = {n for n in installed.sdist_names if n.startswith("tests/") and n.endswith(".py")}
    assert tests == {"tests/packaging/smoke.py"}, "a part of the tests is no test suite"
    assert [name for name in installed.sdist_names if name.endswith((".so", ".pyc"))] == []


def test_wheel_has_every_module_and_nothing_else(installed: Installation) -> None:
    names = set(zipfile.ZipFile(installed.wheel).namelist())
    modules = {
        path.relative_to(ROOT).as_posix()
        for pattern in ("*.py", "*.pyi", "py.typed", "*.html", "*.js", "*.css")
        for path in (ROOT / "ptd_engine").rglob(pattern)
    } | {f"ptd_engine/triton_kernels/{p.name}" for p in (ROOT / "triton_kernels").glob("*.py")}
    assert "ptd_engine/py.typed" in modules
    assert modules <= names
    tops = {name.split("/", 1)[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"ptd_engine"}
    headers = {path.name for path in (ROOT / "csrc/include/ptd").rglob("*.h")}
    assert headers == {Path(name).name for name in names if name.endswith(".h")}
    for licence in LICENCES:
        assert any(name.endswith(f"licenses/{licence}") for name in names), licence


def test_wheel_tag_is_that_of_its_extension(installed: Installation) -> None:
    # A tag wider than the module inside installs where the import then fails.
    (module,) = (
        n for n in zipfile.ZipFile(installed.wheel).namelist() if "/_core." in n if ".so" in n
    )
    assert module == f"ptd_engine/_core{sysconfig.get_config_var('EXT_SUFFIX')}"
    python_tag, abi_tag, platform_tag = installed.wheel.stem.split("-")[-3:]
    expected = f"cp{sys.version_info.major}{sys.version_info.minor}"
    assert (python_tag, abi_tag.rstrip("t")) == (expected, expected)
    assert platform_tag == re.sub(r"[-.]", "_", sysconfig.get_platform())


def test_installed_package_drafts(installed: Installation, tmp_path: Path) -> None:
    output = call(installed.python, "-I", SMOKE, cwd=tmp_path)
    assert Path(output.strip()).parent == installed.package_dir


def test_command_is_installed(installed: Installation, tmp_path: Path) -> None:
    command = installed.python.parent / "ptd-engine"
    assert "generate" in call(command, "--help", cwd=tmp_path)


def test_cxx_consumer_finds_and_runs_the_core(installed: Installation, tmp_path: Path) -> None:
    init = (ROOT / "ptd_engine/__init__.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__ = "(\d+\.\d+)', init, re.MULTILINE)
    assert found is not None
    (tmp_path / "CMakeLists.txt").write_text(CONSUMER_CMAKE.format(version=found[1]))
    (tmp_path / "main.cpp").write_text(CONSUMER_SOURCE)
    printed = call(installed.python, "-I", "-m", "ptd_engine", "--cmake-dir", cwd=tmp_path)
    assert Path(printed.strip()).is_relative_to(installed.package_dir)
    call("cmake", "-S", ".", "-B", "build", f"-Dptd_DIR={printed.strip()}", cwd=tmp_path)
    call("cmake", "--build", "build", cwd=tmp_path)
    assert call("build/consumer", cwd=tmp_path) == "1 nodes, first 6\n"


def test_the_library_for_c_is_in_the_wheel(installed: Installation, tmp_path: Path) -> None:
    call(installed.python, "-I", "-c", LOAD_FOR_C, cwd=tmp_path)
    # Headers and libraries are a small part of it.
    assert installed.wheel.stat().st_size < 8_000_000
