"""The layer table of ptd_engine and what finds violations of it in Python imports and #includes.

A component is a module or sub-package right below ptd_engine, or a folder of csrc. The table lists
what each may import; it is the single place to change when a component is added.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "ptd_engine"
FACADE = "ptd_engine"  # the package's own __init__: what `from ptd_engine import LLM` imports

_BASE = frozenset({"errors", "config", "metrics", "outputs"})
_EXECUTION = _BASE | {"checkpoint", "kernels", "kv_cache", "model"}


@dataclass(frozen=True)
class Rule:
    """What one component may import: components of ptd_engine, and third-party packages."""

    components: frozenset[str] = frozenset()
    packages: frozenset[str] = frozenset()


def _rule(components: frozenset[str] | set[str], *packages: str) -> Rule:
    return Rule(frozenset(components), frozenset(packages))


PYTHON_RULES: Mapping[str, Rule] = {
    # 3: the extension module imports nothing; its stub names numpy types
    "_core": _rule(set(), "numpy"),
    "_cuda": _rule(set()),
    "triton_kernels": _rule(set(), "torch", "triton"),
    # 4: the standard library only
    "errors": _rule(set()),
    "checks": _rule({"errors"}),
    "sampling": _rule({"errors", "checks"}, "torch"),  # a type only
    "drafter_configs": _rule({"errors", "checks"}),
    "config": _rule({"errors", "checks", "sampling", "drafter_configs"}),
    "metrics": _rule({"errors"}),
    "outputs": _rule({"errors", "config", "metrics"}),
    # 5: siblings, except that a tokenizer may be read from a checkpoint's header
    "corpus_file": _rule({"errors", "checks"}),
    "drafters": _rule(_BASE | {"_core", "drafter_configs", "corpus_file"}),
    # of _core the CPU kernels
    "kernels": _rule(_BASE | {"_core", "_cuda", "triton_kernels"}, "torch", "numpy", "triton"),
    "checkpoint": _rule(_BASE, "torch", "numpy", "safetensors", "gguf"),
    "demo_model": _rule(_BASE),
    "hub": _rule(_BASE | {"demo_model"}, "huggingface_hub"),
    # spacy: used where it is installed
    "text": _rule(_BASE | {"checkpoint"}, "transformers", "tokenizers", "jinja2", "spacy"),
    # 6
    "kv_cache": _rule(_BASE, "torch"),
    "model": _rule(_BASE | {"checkpoint", "kernels", "kv_cache"}, "torch", "transformers"),
    # 7: owns memory, knows no algorithm; of _core it uses the layout of the plan
    "runner": _rule(_EXECUTION | {"_core"}, "torch", "numpy"),
    # the same, over several processes
    "tensor_parallel": _rule(_EXECUTION | {"_core", "runner"}, "torch", "numpy"),
    # sizes of all of it, without memory
    "memory_plan": _rule(_EXECUTION | {"runner", "tensor_parallel"}, "torch"),
    "turnstile": _rule({"errors"}),
    "streamers": _rule({"errors"}, "torch"),
    # 8: joins algorithm and execution, knows no text and no files
    "generation": _rule(_BASE | {"_core", "runner"}, "torch", "numpy"),
    "engine": _rule(_BASE | {"_core", "kernels", "runner", "turnstile", "generation"}),
    # 9
    "drafter_view": _rule({"errors", "_core"}, "rich"),
    "llm_arguments": _rule(_BASE | {"model"}, "torch"),
    "text_chunks": _rule(_BASE | {"text", "engine", "generation"}),
    "llm": _rule(
        _EXECUTION
        | {
            "_core",
            "drafter_view",
            "llm_arguments",
            "text_chunks",
            "drafters",
            "hub",
            "text",
            "runner",
            "tensor_parallel",
            "memory_plan",
            "turnstile",
            "streamers",
            "engine",
        },
        *("torch", "numpy"),
    ),
    "hf": _rule(
        _EXECUTION | {"checks", "_core", "drafters", "runner", "streamers", "engine"},
        *("torch", "transformers"),
    ),
    FACADE: _rule(_BASE | {"llm"}),
    "cli": _rule(
        _EXECUTION
        | {"_core", "drafter_configs", "drafter_view", "drafters", "hub", "text", "runner"}
        | {"memory_plan", "engine", "llm", "llm_arguments", "server", "tensor_parallel", FACADE},
        *("torch", "numpy", "typer", "rich"),
    ),
    "server": _rule(
        _BASE | {"checks", "sampling", "_core", "drafters", "text", "engine", "llm", FACADE},
        *("fastapi", "starlette", "pydantic", "uvicorn", "prometheus_client"),
    ),
    # many servers; ray is imported where they are deployed
    "distributed": _rule(
        _BASE | {"checks", "llm", "server"}, *("fastapi", "starlette", "typer", "ray")
    ),
    "__main__": _rule({"cli", FACADE}),
    # 10: for tests, benchmarks and examples; nothing below may need it
    "testing": _rule(
        _EXECUTION | {"_core", "drafters", "hub", "text", "runner"},
        *("torch", "numpy", "transformers", "tokenizers", "safetensors", "gguf"),
    ),
}


@dataclass(frozen=True)
class Import:
    """One import as written: the absolute dotted name and where it stands."""

    module: str
    line: int


def imports_of(source: str, module: str, is_package: bool) -> Iterator[Import]:
    """Every import of a module, also those inside functions and importlib calls on literals.

    Args:
        source: the text of the module.
        module: its dotted name, to resolve relative imports.
        is_package: whether it is an __init__.

    Raises:
        ValueError: a relative import leaves the top-level package.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = module.split(".")
                parents = parents[: len(parents) - node.level + is_package]
                if not parents:
                    raise ValueError(f"{module}:{node.lineno}: import leaves the package")
                base = ".".join([*parents, base]).rstrip(".")
            for alias in node.names:
                yield Import(f"{base}.{alias.name}", node.lineno)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            name = node.func.id if isinstance(node.func, ast.Name) else name
            if name in {"import_module", "__import__"} and isinstance(node.args[0].value, str):
                yield Import(node.args[0].value, node.lineno)


def component_of(module: str, components: frozenset[str]) -> str:
    """Component of a dotted name below ptd_engine; a name that is no module is the facade's."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in components else FACADE


def python_violations(sources: Mapping[str, tuple[str, bool]]) -> list[str]:
    """Imports that the table forbids, as "module:line: reason".

    Args:
        sources: dotted module name -> (text, whether it is a package's __init__).
    """
    present = {name.split(".")[1] for name in sources if "." in name}
    components = frozenset(PYTHON_RULES) - {FACADE} | present
    found = []
    for module, (source, is_package) in sources.items():
        own = component_of(module, components)
        rule = PYTHON_RULES.get(own)
        if rule is None:
            found.append(f"{module}:1: {own} has no layer: add it to PYTHON_RULES")
            continue
        for item in imports_of(source, module, is_package):
            top = item.module.split(".")[0]
            if top == PACKAGE:
                target = component_of(item.module, components)
                if target not in rule.components | {own}:
                    found.append(f"{module}:{item.line}: {own} must not import {target}")
            elif top not in sys.stdlib_module_names and top not in rule.packages:
                found.append(f"{module}:{item.line}: {own} must not import {top}")
    return found


def import_graph(sources: Mapping[str, tuple[str, bool]]) -> dict[str, set[str]]:
    """Module -> modules of the package that it imports; the facade and own parents left out.

    A part that names a sibling (`from ptd_engine.kernels import ops` in kernels.registry) is not
    importing the facade that joins them.
    """
    graph: dict[str, set[str]] = {}
    for module, (source, is_package) in sources.items():
        named = [item.module for item in imports_of(source, module, is_package)]
        targets = {*named, *(name.rpartition(".")[0] for name in named)} & sources.keys()
        own_parents = {target for target in targets if f"{module}.".startswith(f"{target}.")}
        graph[module] = targets - own_parents - {PACKAGE}
    return graph


_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]', re.MULTILINE)
_STANDARD = re.compile(r"<[a-z_0-9]+>$")  # <vector>: neither a folder nor a .h
_C_STANDARD = re.compile(r"<std(def|int)\.h>$")  # of ptd.h, which is C
_PUBLIC = re.compile(r'"ptd/[a-z_0-9]+\.h"$')
_LOCAL = re.compile(r'"[a-z_0-9]+\.h"$')
_CPU = re.compile(r'"ptd/cpu/[a-z_0-9]+\.h"$')
_SYSTEM = re.compile(
    r"<(immintrin|cpuid|math|unistd|sys/mman|sys/resource|sys/syscall|sys/wait)\.h>$"
)
_PYBIND = re.compile(r"<pybind11/[a-z_0-9/]+\.h>$")
_CUDA = re.compile(r'"ptd/cuda/[a-z_0-9]+\.h"$')
_CUDA_LOCAL = re.compile(r'"[a-z_0-9]+\.cuh"$')
# What the stand-in of tests/cuda_shim has, too; <shim_ptx.h> is a part of it.
_CUDA_DEVICE = re.compile(r"<(cuda_(runtime|bf16|fp16)|shim_ptx)\.h>$")
_CUDA_RUNTIME = re.compile(r"<cuda_runtime_api\.h>$")
_FIBERS = re.compile(r"<(ucontext|sys/mman)\.h>$")

# Folder of csrc -> forms of #include it may use. Only bindings know Python, nothing knows torch,
# and core, cpu and cuda do not know each other. The longest folder that matches counts.
INCLUDE_RULES: Mapping[str, tuple[re.Pattern[str], ...]] = {
    "include": (_STANDARD, _C_STANDARD, _PUBLIC),
    "include/ptd/cpu": (_STANDARD, _CPU),
    "include/ptd/cuda": (_STANDARD, _CUDA, _CUDA_RUNTIME),
    "core": (_STANDARD, _PUBLIC, _LOCAL),
    "cpu": (_STANDARD, _CPU, _LOCAL, _SYSTEM),
    "cuda": (_STANDARD, _CUDA, _CUDA_LOCAL, _CUDA_DEVICE),
    "bindings": (_STANDARD, _PUBLIC, _CPU, _CUDA, _LOCAL, _PYBIND),
    "capi": (_STANDARD, _PUBLIC, _LOCAL),
    "tests": (_STANDARD, _PUBLIC, _CPU, _CUDA, _LOCAL, _SYSTEM),
    "fuzz": (_STANDARD, _PUBLIC, _LOCAL),
    "tests/cuda_shim": (_STANDARD, _LOCAL, _FIBERS),
    "examples": (_STANDARD, _PUBLIC, _CPU),
}


def include_violations(sources: Mapping[str, str]) -> list[str]:
    """#includes that the table forbids, as "path:line: reason"; paths are relative to csrc."""
    found = []
    for path, source in sources.items():
        folder = max((f for f in INCLUDE_RULES if path.startswith(f"{f}/")), key=len, default="")
        if not folder:
            folder = path.split("/", 1)[0]
            found.append(f"{path}:1: csrc/{folder} has no layer: add it to INCLUDE_RULES")
            continue
        allowed = INCLUDE_RULES[folder]
        for match in _INCLUDE.finditer(source):
            written = match[0].split("include", 1)[1].strip()
            if not any(form.match(written) for form in allowed):
                line = source.count("\n", 0, match.start()) + 1
                found.append(f"{path}:{line}: csrc/{folder} must not include {written}")
    return found


def python_sources(package_dir: Path, *prefix: str) -> dict[str, tuple[str, bool]]:
    """Modules and stubs below a package folder, by dotted name.

    Args:
        package_dir: the folder.
        prefix: names of the packages that it is installed into.
    """
    sources = {}
    for path in sorted(package_dir.rglob("*.py*")):
        if path.suffix not in {".py", ".pyi"}:
            continue
        parts = [*prefix, package_dir.name, *path.relative_to(package_dir).with_suffix("").parts]
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        sources[name] = (path.read_text(encoding="utf-8"), is_package)
    return sources


def cxx_sources(csrc: Path) -> dict[str, str]:
    """C++ sources and headers below csrc, by relative path."""
    return {
        path.relative_to(csrc).as_posix(): path.read_text(encoding="utf-8")
        for path in sorted(csrc.rglob("*"))
        if path.suffix in {".h", ".hpp", ".cuh", ".cpp", ".cc", ".cu"}
    }
