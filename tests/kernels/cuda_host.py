"""Compiles the CUDA sources for the CPU, with csrc/tests/cuda_shim in place of CUDA's headers.

Objects are kept in build/cuda_host by what they were made from: unchanged sources compile once.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sysconfig
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]
CSRC = ROOT / "csrc"
CACHE = ROOT / "build" / "cuda_host"
KERNELS = tuple(sorted(path.name for path in (CSRC / "cuda").glob("*.cu")))

# Cases of a launch that mutants are compiled without.
_WIDE_HEADS = re.compile(r"    case (?:96|128|256):\n      return launch_attention<.*\n")
# Not optimised further: compiling takes longer than running.
_FLAGS = ("-std=c++17", "-O1", "-fPIC", "-ffp-contract=off", "-Wno-unknown-pragmas", "-w")


def _tool() -> str:
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++")
    assert compiler, "a C++ compiler built ptd_engine"
    return compiler


def _call(*command: str | Path) -> None:
    result = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, timeout=300, check=False
    )
    assert result.returncode == 0, f"{command}\n{result.stderr}"


def _unfinished(made: Path) -> Path:
    """Where one thread of one process writes what then becomes `made`, whole."""
    return made.with_suffix(f".{os.getpid()}.{threading.get_ident()}.new")


def _fingerprint(*parts: str) -> str:
    """Of the parts and of every file that an object may be made from."""
    digest = hashlib.sha256("\0".join([_tool(), *_FLAGS, *parts]).encode())
    for folder in ("cuda", "include/ptd/cuda", "tests/cuda_shim", "tests", "bindings"):
        for path in sorted((CSRC / folder).glob("*")):
            if path.suffix in {".cu", ".cuh", ".h"} or "cuda" in path.name:
                digest.update(path.name.encode() + (path.read_bytes() if path.is_file() else b""))
    return digest.hexdigest()[:16]


def compile_object(source: Path, *flags: str, cuda: Path = CSRC / "cuda") -> Path:
    """The object of a source; `cuda` is where its .cuh files are."""
    made = CACHE / f"{source.stem}-{_fingerprint(str(source), *flags)}.o"
    if cuda != CSRC / "cuda":
        made = source.with_suffix(".o")
    if made.exists():
        return made
    made.parent.mkdir(parents=True, exist_ok=True)
    includes = ("-I", cuda, "-I", CSRC / "tests/cuda_shim", "-I", CSRC / "include")
    new = _unfinished(made)
    _call(_tool(), *_FLAGS, *flags, *includes, "-x", "c++", "-c", source, "-o", new)
    new.replace(made)
    return made


def kernel_objects() -> dict[str, Path]:
    """Objects of the kernels and of the shim, by the name of the source."""
    sources = [CSRC / "cuda" / name for name in KERNELS] + [CSRC / "tests/cuda_shim/fibers.cpp"]
    with ThreadPoolExecutor(2) as pool:
        return dict(zip([s.name for s in sources], pool.map(compile_object, sources), strict=True))


def host_module() -> ModuleType:
    """The module ptd_engine._cuda with its kernels on the CPU."""
    import pybind11

    python = sysconfig.get_path("include")
    binding = compile_object(
        CSRC / "bindings/cuda_module.cpp", f"-I{pybind11.get_include()}", f"-I{python}"
    )
    path = CACHE / f"{binding.stem}{sysconfig.get_config_var('EXT_SUFFIX')}"
    if not path.exists():
        new = _unfinished(path)
        _call(_tool(), "-shared", "-o", new, binding, *kernel_objects().values())
        new.replace(path)
    spec = importlib.util.spec_from_file_location("_cuda", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_mutant(
    test: str, changes: Mapping[str, tuple[str, str]], sources: Sequence[str], folder: Path
) -> int:
    """Exit status of a C++ test over kernels with planted changes, without the wide heads.

    Args:
        test: the name of a file of csrc/tests, without its suffix.
        changes: name of a file in csrc/cuda -> (text that occurs once, what replaces it).
        sources: the .cu files that are compiled with the changes; the others stay as they are.
        folder: where to work, empty.
    """
    cuda = folder / "cuda"
    shutil.copytree(CSRC / "cuda", cuda)
    for name, (old, new) in changes.items():
        text = (cuda / name).read_text(encoding="utf-8")
        assert text.count(old) == 1, f"{name} holds {text.count(old)} times: {old}"
        (cuda / name).write_text(text.replace(old, new), encoding="utf-8")
    launches = cuda / "attention_launch.cuh"
    launches.write_text(_WIDE_HEADS.sub("", launches.read_text(encoding="utf-8")), encoding="utf-8")
    changed = [compile_object(cuda / name, cuda=cuda) for name in sources]
    others = [path for name, path in kernel_objects().items() if name not in sources]
    program = folder / test
    main = compile_object(CSRC / "tests" / f"{test}.cpp")
    _call(_tool(), "-o", program, main, *changed, *others)  # the first of equal symbols is taken
    result = subprocess.run([program, "narrow"], capture_output=True, timeout=120, check=False)
    return result.returncode
