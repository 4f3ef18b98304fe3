"""Choice of the backend of every op, made once when a model is built."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch

from ptd_engine import _core
from ptd_engine.errors import ConfigError, UnavailableError
from ptd_engine.kernels import cpu_ops, cuda_ops, torch_ref, triton_backend
from ptd_engine.kernels.ops import OpChoice, Ops, WeightFormat
from ptd_engine.kernels.request import KernelRequest

Probe = Callable[[KernelRequest], str | None]
Loader = Callable[[KernelRequest], Mapping[str, object]]

# Of `Ops`, what is no op. A loader gives those of its backend beside its ops, under these names.
_EXTRAS = (
    *("record", "shares_embedding", "logits_dtype", "packed_nbytes", "fused"),
    "workspace_numel",
)
OP_NAMES: tuple[str, ...] = tuple(
    field.name for field in fields(Ops) if field.name not in ("choices", *_EXTRAS)
)
# What a forward pass over a tree calls.
FORWARD_OPS = ("embed", "linear", "add_rms_norm", "rope_kv_write", "tree_attention", "silu_mul")
# Ops that read what another of them laid out.
_LAYOUT_GROUPS = (("pack_linear", "linear", "head_select"), ("pack_embed", "embed"))


@dataclass(frozen=True)
class Backend:
    """A family of kernels.

    Attributes:
        name: what a user writes.
        probe: request -> None where it can serve, else the reason why not; must not raise.
        load: request -> its ops by name, and `_EXTRAS` if it has any; a subset of the ops is fine.
            Ops of one layout (`linear` and `pack_linear`, ...) come together, because the layout
            is private to the backend.
        auto_probe: what `auto` asks besides: the reason why it should rather pass over a backend
            that can serve, or None.
        variants: what may follow the name after a colon.
    """

    name: str
    probe: Probe
    load: Loader
    auto_probe: Probe = lambda request: None
    variants: Sequence[str] = ()


# In order of preference: `auto` takes the first that can serve.
BACKENDS: tuple[Backend, ...] = (
    Backend("cpu", cpu_ops.probe, cpu_ops.load, cpu_ops.auto_probe, cpu_ops.VARIANTS),
    Backend("triton", triton_backend.probe, triton_backend.load, triton_backend.auto_probe),
    Backend("cuda", cuda_ops.probe, cuda_ops.load),
    Backend("torch", torch_ref.probe, torch_ref.load),
)


def _named(name: str, field: str, backends: Sequence[Backend]) -> tuple[Backend, str]:
    """The backend of that name and the variant, "" if none was written."""
    base, colon, variant = name.partition(":")
    for backend in backends:
        if backend.name == base:
            if colon and variant not in backend.variants:
                allowed = ", ".join(f"'{base}:{v}'" for v in backend.variants) or f"'{base}'"
                raise ConfigError.for_field(field, name, allowed)
            return backend, variant
    known = ", ".join(repr(known) for known in ("auto", *(b.name for b in backends)))
    raise ConfigError.for_field(field, name, known, "`auto` picks the best for each op.")


def select_ops(
    backend: str = "auto",
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    head_dim: int = 64,
    overrides: Mapping[str, str] | None = None,
    *,
    weight_format: WeightFormat = "float",
    num_threads: int | None = None,
    query_group: int = 1,
    kv_heads: int = 1,
    backends: Sequence[Backend] | None = None,
) -> Ops:
    """Resolve every op to a backend.

    Args:
        backend: a backend's name, which must then serve every op (it never falls back), or "auto",
            which takes for each op the first backend that can. "cpu:avx2" and the like name the
            instruction set as well.
        device, dtype, head_dim, weight_format, query_group, kv_heads: what the kernels must
            support; see `KernelRequest`.
        overrides: op name -> backend name, for single ops; never falls back either.
        num_threads: threads of CPU kernels; None takes torch's number.
        backends: the known ones, in order of preference; None: `BACKENDS`.

    Raises:
        ConfigError: unknown backend or op name, ops of one layout from two backends.
        UnavailableError: a backend that was asked for by name cannot serve; the message holds its
            reason.
    """
    backends = BACKENDS if backends is None else backends
    if num_threads is not None and num_threads < 1:
        raise ConfigError.for_field("num_threads", num_threads, "an integer >= 1, or None")
    request = KernelRequest(
        torch.device(device),
        dtype,
        head_dim,
        weight_format,
        num_threads,
        query_group=query_group,
        kv_heads=kv_heads,
    )
    wanted = dict.fromkeys(OP_NAMES, backend)
    for op, name in (overrides or {}).items():
        if op not in wanted:
            raise ConfigError.for_field("overrides", op, f"an op of {', '.join(OP_NAMES)}")
        wanted[op] = name
    chooser = _Chooser(request, backends)
    chosen: dict[str, Any] = {}
    choices: list[OpChoice] = []
    for op, name in wanted.items():
        field = f"overrides[{op!r}]" if op in (overrides or {}) else "kernels"
        chosen[op], choice = chooser.choose(op, name, field)
        choices.append(choice)
    by_op = {choice.op: choice.backend for choice in choices}
    for group in _LAYOUT_GROUPS:
        if len({by_op[op] for op in group}) > 1:
            raise ConfigError.for_field(
                "overrides",
                {op: by_op[op] for op in group},
                f"one backend for {', '.join(group)}",
                "The packed layout is private to a backend.",
            )
    extras = chooser.extras(by_op)
    return Ops(**chosen, choices=tuple(choices), **extras)


class _Chooser:
    """Asks and loads each backend once for a request."""

    def __init__(self, request: KernelRequest, backends: Sequence[Backend]) -> None:
        self._request, self._backends = request, backends
        self._loaded: dict[str, str | Mapping[str, object]] = {}
        self._variants: dict[str, str] = {}

    def choose(self, op: str, name: str, field: str) -> tuple[object, OpChoice]:
        """The op's callable, from `name` or, for "auto", from the first that can serve."""
        passed: list[str] = []
        for backend, variant in self._candidates(name, field):
            found = self._ops(backend, variant, auto=name == "auto")
            if isinstance(found, str):
                passed.append(f"{backend.name}: {found}")
            elif op not in found:
                passed.append(f"{backend.name}: has no {op}")
            else:
                why = "; ".join(passed) or ("first choice" if name == "auto" else "asked for")
                return found[op], OpChoice(op, backend.name, why)
        request = self._request
        weights = "" if request.weight_format == "float" else f", {request.weight_format} weights"
        raise UnavailableError(
            f"no kernel for {op} on {request.device} with {request.dtype}{weights}, head_dim "
            f"{request.head_dim} ({'; '.join(passed)}). "
            "Use kernels='auto' to fall back, or leave this op out of the override."
        )

    def extras(self, by_op: Mapping[str, str]) -> dict[str, Any]:
        """What the chosen backends give besides ops.

        Recording and fusion need all ops of a forward pass; the others go with the op they speak
        of.
        """
        extras: dict[str, Any] = {}
        speaker = {**dict.fromkeys(_EXTRAS, "linear"), "workspace_numel": "tree_attention"}
        alike = {by_op[op] for op in FORWARD_OPS}
        for extra, op in speaker.items():
            found = self._loaded_by_name(by_op[op])
            needs_all = extra in ("record", "fused") and len(alike) > 1
            needs_embed = extra == "shares_embedding" and by_op["embed"] != by_op["linear"]
            if extra in found and not needs_all and not needs_embed:
                extras[extra] = found[extra]
        return extras

    def _candidates(self, name: str, field: str) -> list[tuple[Backend, str]]:
        if name == "auto":
            return [(backend, "") for backend in self._backends]
        return [_named(name, field, self._backends)]

    def _ops(self, backend: Backend, variant: str, *, auto: bool) -> str | Mapping[str, object]:
        """Its ops, or the reason why it cannot serve."""
        if auto:
            reason = backend.auto_probe(self._request)
            if reason is not None:
                return reason
        if self._variants.setdefault(backend.name, variant) != variant:
            raise ConfigError.for_field(
                "overrides",
                f"{backend.name}:{variant or 'auto'}",
                f"one variant of {backend.name} for all ops",
                f"{backend.name}:{self._variants[backend.name] or 'auto'} is asked for as well.",
            )
        if backend.name not in self._loaded:
            request = replace(self._request, variant=variant)
            reason = backend.probe(request)
            self._loaded[backend.name] = backend.load(request) if reason is None else reason
        return self._loaded[backend.name]

    def _loaded_by_name(self, name: str) -> Mapping[str, object]:
        found = self._loaded[name]
        assert not isinstance(found, str)  # it serves an op
        return found


def preferred_dtype(device: torch.device, kernels: str = "auto") -> torch.dtype:
    """The dtype that these kernels are best at on this device, for weights that fit any.

    On a CPU bfloat16 halves the bytes of a step; torch's own CPU operations are faster and exact
    in float32.
    """
    if device.type != "cpu":
        return torch.bfloat16
    native = kernels == "auto" and _core.cpu_best_isa() != "scalar"
    return torch.bfloat16 if native or kernels.startswith("cpu") else torch.float32
