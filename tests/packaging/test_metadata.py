"""pyproject.toml, constraints.txt and the package agree with each other."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def requirements(*, build: bool = True, extras: bool = True) -> list[Requirement]:
    """Requirements of pyproject.toml: those of the package, of the build, of the extras."""
    texts = list(PROJECT["project"]["dependencies"])
    if build:
        texts += PROJECT["build-system"]["requires"]
    if extras:
        for group in PROJECT["project"]["optional-dependencies"].values():
            texts += group
    return [Requirement(text) for text in texts]


def pins() -> dict[str, Version]:
    """Package -> version of constraints.txt; every line must be an exact pin."""
    found = {}
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            name, exact, version = line.partition("==")
            assert exact, line
            found[canonicalize_name(name)] = Version(version)
    return found


def test_every_requirement_is_pinned_within_its_range() -> None:
    pinned = pins()
    for requirement in requirements():
        name = canonicalize_name(requirement.name)
        assert name in pinned, f"{name} has no pin in constraints.txt"
        assert requirement.specifier.contains(pinned[name]), f"{requirement} excludes its pin"


def test_torch_is_no_build_requirement() -> None:
    # It would make pip's isolated build environment download a CUDA build of several GB.
    build = {Requirement(text).name for text in PROJECT["build-system"]["requires"]}
    assert "torch" not in build
    assert "import torch" not in (ROOT / "setup.py").read_text(encoding="utf-8")


def test_third_party_imports_are_declared() -> None:
    declared = {r.name.replace("-", "_") for r in requirements(build=False, extras=False)}
    texts = PROJECT["project"]["optional-dependencies"]["serve"]
    of_extra = {Requirement(text).name.replace("-", "_") for text in texts}
    for path in (ROOT / "ptd_engine").rglob("*.py"):
        imported = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                imported.add(node.module.split(".")[0])
        allowed = declared | (of_extra if {"server", "distributed"} & {*path.parts} else set())
        if "distributed" in path.parts:
            allowed |= {"ray"}
        assert imported - sys.stdlib_module_names - {"ptd_engine"} <= allowed, path


def test_version_has_the_form_that_cmake_reads() -> None:
    init = (ROOT / "ptd_engine/__init__.py").read_text(encoding="utf-8")
    assert re.search(r'^__version__ = "\d+\.\d+\.\d+"$', init, re.MULTILINE)


def test_every_package_is_listed() -> None:
    folders = {path.parent for path in (ROOT / "ptd_engine").rglob("__init__.py")}
    names = {".".join(folder.relative_to(ROOT).parts) for folder in folders}
    listed = PROJECT["tool"]["setuptools"]["packages"]
    assert sorted(listed) == sorted({*names, "ptd_engine.triton_kernels"})
