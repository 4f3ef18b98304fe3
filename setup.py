"""Builds ptd_engine._core: drives csrc/CMakeLists.txt with cmake and ninja. Never imports torch.

Where nvcc is found, ptd_engine._cuda as well. The same CMake project builds the libraries for C++.
A wheel carries them too (headers, libraries, CMake package), an editable install gets the extension
modules alone.

Environment: PTD_CUDA is auto (the CUDA kernels are built if there is an nvcc), 0 or 1; nvcc is
looked up by CUDACXX, CUDA_HOME, /usr/local/cuda and PATH. PTD_CUDA_ARCHS lists GPU architectures
("80;90a;100"). MAX_JOBS bounds the parallel compilations, CMAKE_ARGS is passed on to cmake.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build import build
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
SOURCE_DIR = ROOT / "csrc"
CUDA_SETTINGS = {"PTD_CUDA": "auto", "PTD_CUDA_ARCHS": "80;90a;100"}  # and their defaults


def find_tool(name: str) -> str:
    """Path of a build tool: beside this interpreter first (a venv need not be activated)."""
    search = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    path = shutil.which(name, path=search)
    if path is None:
        raise SystemExit(
            f"ptd_engine: the build needs {name} and it was not found. "
            f"Install it with: {sys.executable} -m pip install {name}"
        )
    return path


def cached_source_dir(build_dir: Path) -> Path | None:
    """The source folder that a CMake build folder was made for, None if it is new."""
    cache = build_dir / "CMakeCache.txt"
    if not cache.exists():
        return None
    for line in cache.read_text(encoding="utf-8").splitlines():
        if line.startswith("CMAKE_HOME_DIRECTORY:"):
            return Path(line.split("=", 1)[1])
    return None


class CleanBuild(build):
    """Begins with an empty build/lib: setuptools would ship modules that were deleted since."""

    def run(self) -> None:
        """Build, without what the last build left."""
        shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()


class CMakeBuild(build_ext):
    """Configures, builds and installs the CMake project in place of compiling sources itself."""

    def build_extension(self, ext: Extension) -> None:
        """Put the extension where setuptools expects it, and the C++ package into a wheel."""
        import pybind11

        # A folder of our own: setuptools would use a temporary one for an editable install, and
        # each edit of one file would then compile everything.
        build_dir = ROOT / "build" / "cmake" / f"python-{sys.implementation.cache_tag}"
        build_dir.mkdir(parents=True, exist_ok=True)
        cmake = find_tool("cmake")
        configure = [
            cmake,
            *("-S", str(SOURCE_DIR), "-B", str(build_dir), "-G", "Ninja"),
            f"-DCMAKE_MAKE_PROGRAM={find_tool('ninja')}",
            "-DCMAKE_BUILD_TYPE=Release",
            "-DCMAKE_INSTALL_LIBDIR=lib",
            "-DPTD_BUILD_PYTHON=ON",
            "-DPTD_BUILD_TESTS=OFF",
            f"-DPython_EXECUTABLE={sys.executable}",
            f"-Dpybind11_DIR={pybind11.get_cmake_dir()}",
            *(f"-D{name}={os.environ.get(name) or CUDA_SETTINGS[name]}" for name in CUDA_SETTINGS),
            *shlex.split(os.environ.get("CMAKE_ARGS", "")),
        ]
        if cached_source_dir(build_dir) not in (None, SOURCE_DIR):
            configure.append("--fresh")  # the tree was moved or copied together with build/
        build = [cmake, "--build", str(build_dir)]
        if jobs := os.environ.get("MAX_JOBS"):
            build += ["--parallel", jobs]
        self.call(configure)
        self.call(build)
        package_dir = Path(self.get_ext_fullpath(ext.name)).resolve().parent
        self.install(cmake, build_dir, package_dir, "python")
        if not (self.inplace or self.editable_mode):
            self.install(cmake, build_dir, package_dir, "development")

    def install(self, cmake: str, build_dir: Path, prefix: Path, component: str) -> None:
        """Copy one component of the built project below `prefix`."""
        command = [cmake, "--install", str(build_dir), "--prefix", str(prefix)]
        self.call([*command, "--component", component])

    def call(self, command: list[str]) -> None:
        """Run a command; its output is the build log, its failure ends the build."""
        print("ptd_engine:", shlex.join(command), flush=True)
        result = subprocess.run(command, check=False)
        if result.returncode != 0:
            raise SystemExit(f"ptd_engine: the C++ build failed: {shlex.join(command)}")


setup(
    ext_modules=[Extension("ptd_engine._core", sources=[])],
    cmdclass={"build": CleanBuild, "build_ext": CMakeBuild},
)
