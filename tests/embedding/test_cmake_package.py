"""A CMake project takes ptd from an installation, or with add_subdirectory."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from conftest import ROOT, call

import ptd_engine
from ptd_engine.cli.cmake_dir import cmake_dir
from ptd_engine.errors import UnavailableError

FIND = "find_package(ptd {version} CONFIG REQUIRED COMPONENTS {components})"
PROJECT = """
cmake_minimum_required(VERSION 3.25)
project(consumer LANGUAGES C CXX)
{ptd}
"""
PROGRAMS = """
add_executable(in_c main.c)
target_link_libraries(in_c PRIVATE ptd::c)
add_executable(in_cxx main.cpp)
target_link_libraries(in_cxx PRIVATE ptd::core ptd::cpu)
"""
MAIN_C = """
#include <ptd/ptd.h>
#include <stdio.h>
#include <string.h>

int main(void) {
  ptd_config config = {.struct_size = sizeof config, .vocab_size = 9, .max_seq_len = 99};
  ptd_session* session = NULL;
  if (ptd_session_create("ptd", 3, "{\\"width\\": 0}", 12, &config, &session) == PTD_OK) return 1;
  printf("%d %s %d %s\\n", PTD_VERSION_NUMBER, ptd_version(), session == NULL, ptd_last_error());
  return ptd_abi_version() == PTD_ABI_VERSION ? 0 : 1;
}
"""
MAIN_CXX = """
#include <cstdio>

#include "ptd/cpu/isa.h"
#include "ptd/session.h"
#include "ptd/version.h"

int main() {
  ptd::SessionLimits limits;
  limits.max_seq_len = 100;
  ptd::SessionParams params;
  params.max_new_tokens = 3;
  ptd::Session session({1, 2}, std::make_shared<ptd::AutoregressiveDrafter>(), params, limits);
  std::vector<unsigned char> block(session.plan_bytes());
  while (!session.finished()) {
    session.plan(block.data(), block.size());
    const ptd::TokenId next[1] = {7};
    session.commit({next, 1});
  }
  std::printf("%d tokens, %d\\n", static_cast<int>(session.output_tokens().size()),
              ptd::cpu::isa_unavailable(ptd::cpu::best_isa()).empty());
}
"""


def test_the_versions_of_both_languages_are_one() -> None:
    header = (ROOT / "csrc/include/ptd/version.h").read_text(encoding="utf-8")
    numbers = dict(re.findall(r"^#define PTD_VERSION_(\w+) (\d+)$", header, re.MULTILINE))
    version = ".".join(numbers[part] for part in ("MAJOR", "MINOR", "PATCH"))
    assert version == ptd_engine.__version__


def test_an_installation_in_place_says_where_else_the_package_is(tmp_path: Path) -> None:
    if (Path(ptd_engine.__file__).parent / "lib").exists():
        assert (cmake_dir() / "ptdConfig.cmake").is_file()
        return
    with pytest.raises(UnavailableError, match=r"Install a wheel, or .*add_subdirectory"):
        cmake_dir()


def configure(
    folder: Path, project: str, *arguments: str | Path
) -> subprocess.CompletedProcess[str]:
    """Write a project and configure it."""
    folder.mkdir(exist_ok=True)
    (folder / "CMakeLists.txt").write_text(project, encoding="utf-8")
    (folder / "main.c").write_text(MAIN_C, encoding="utf-8")
    (folder / "main.cpp").write_text(MAIN_CXX, encoding="utf-8")
    command = ["cmake", "-G", "Ninja", "-S", str(folder), "-B", str(folder / "build")]
    return subprocess.run(
        [*command, *map(str, arguments)], capture_output=True, text=True, timeout=300, check=False
    )


def find(components: str, version: str = ptd_engine.__version__) -> str:
    return PROJECT.format(ptd=FIND.format(version=version, components=components))


def test_programs_in_c_and_cxx_from_an_installation(prefix: Path, tmp_path: Path) -> None:
    done = configure(tmp_path, find("core cpu c") + PROGRAMS, f"-DCMAKE_PREFIX_PATH={prefix}")
    assert done.returncode == 0, done.stderr
    call("cmake", "--build", tmp_path / "build")
    number = 0
    for part in ptd_engine.__version__.split("."):
        number = 1000 * number + int(part)
    assert call(tmp_path / "build" / "in_c") == (
        f"{number} {ptd_engine.__version__} 1 "
        "width=0 is not valid: allowed is an integer from 1 to 64.\n"
    )
    assert call(tmp_path / "build" / "in_cxx") == "3 tokens, 1\n"


@pytest.mark.parametrize(
    ("components", "version", "says"),
    [
        ("core gpu", ptd_engine.__version__, "no component 'gpu'.*core, cpu, c and cuda are"),
        ("core", "99.0", 'compatible with requested version "99.0"'),
    ],
)
def test_find_package_says_what_is_missing(
    prefix: Path, tmp_path: Path, components: str, version: str, says: str
) -> None:
    done = configure(tmp_path, find(components, version), f"-DCMAKE_PREFIX_PATH={prefix}")
    assert done.returncode != 0
    assert re.search(says, " ".join(done.stderr.split())), done.stderr


def test_cuda_is_a_component_where_it_was_built(prefix: Path, tmp_path: Path) -> None:
    has_cuda = any(prefix.rglob("ptdCudaTargets.cmake"))
    done = configure(tmp_path / "must", find("cuda"), f"-DCMAKE_PREFIX_PATH={prefix}")
    may = find("core").replace("core)", "core OPTIONAL_COMPONENTS cuda)")
    optional = configure(tmp_path / "may", may, f"-DCMAKE_PREFIX_PATH={prefix}")
    assert optional.returncode == 0, optional.stderr
    if not has_cuda:
        assert done.returncode != 0
        said = " ".join(done.stderr.split())
        assert "this package has no ptd::cuda" in said
        assert "PTD_CUDA=1" in said
    elif done.returncode != 0:
        assert "install the CUDA toolkit" in " ".join(done.stderr.split())


def test_add_subdirectory(tmp_path: Path) -> None:
    add = PROJECT.format(ptd=f'add_subdirectory("{ROOT / "csrc"}" ptd)') + PROGRAMS
    done = configure(tmp_path, add, "-DPTD_CUDA=0")
    assert done.returncode == 0, done.stderr
    # The libraries themselves are built elsewhere in these tests: here the plan is enough.
    planned = call("ninja", "-C", tmp_path / "build", "-t", "commands", "in_c", "in_cxx")
    for made in ("capi/step.cpp.o", "core/session.cpp.o", "ptd/libptd.so", "ptd/libptd_cpu.a"):
        assert made in planned
    call("ninja", "-C", tmp_path / "build", "CMakeFiles/in_cxx.dir/main.cpp.o")
    call("ninja", "-C", tmp_path / "build", "CMakeFiles/in_c.dir/main.c.o")
    tests = call("ctest", "-N", "--test-dir", tmp_path / "build")
    assert "Total Tests: 0" in tests or "No tests were found" in tests, "not those of ptd"
