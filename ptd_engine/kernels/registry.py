"""Choice of the backend of every op, made once when a model is built."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch

from ptd_engine.errors import ConfigError, UnavailableError
from ptd_engine.kernels import torch_ref
from ptd_engine.kernels.ops import OpChoice, Ops

Probe = Callable[[torch.device, torch.dtype, int], str | None]
Loader = Callable[[torch.device, torch.dtype, int], Mapping[str, object]]

OP_NAMES: tuple[str, ...] = tuple(field.name for field in fields(Ops) if field.name != "choices")


@dataclass(frozen=True)
class Backend:
    """A family of kernels.

    Attributes:
        name: what a user writes.
        probe: (device, dtype, head_dim) -> None where it can serve, else the reason why not; must
            not raise.
        load: (device, dtype, head_dim) -> its ops by name; a subset of the ops is fine. `linear`
            and `pack_linear` come together, because the layout is private to the backend.
    """

    name: str
    probe: Probe
    load: Loader


def _always(device: torch.device, dtype: torch.dtype, head_dim: int) -> str | None:
    return None


# In order of preference: `auto` takes the first that can serve.
BACKENDS: tuple[Backend, ...] = (Backend("torch", _always, torch_ref.load),)


def _named(name: str, field: str, backends: Sequence[Backend]) -> Backend:
    for backend in backends:
        if backend.name == name:
            return backend
    known = ", ".join(repr(known) for known in ("auto", *(b.name for b in backends)))
    raise ConfigError.for_field(field, name, known, "`auto` picks the best for each op.")


def select_ops(
    backend: str = "auto",
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    head_dim: int = 64,
    overrides: Mapping[str, str] | None = None,
    *,
    backends: Sequence[Backend] = BACKENDS,
) -> Ops:
    """Resolve every op to a backend.

    Args:
        backend: a backend's name, which must then serve every op (it never falls back), or "auto",
            which takes for each op the first backend that can.
        device, dtype, head_dim: what the kernels must support.
        overrides: op name -> backend name, for single ops; never falls back either.
        backends: the known ones, in order of preference.

    Raises:
        ConfigError: unknown backend or op name.
        UnavailableError: a backend that was asked for by name cannot serve; the message holds its
            reason.
    """
    device = torch.device(device)
    wanted = dict.fromkeys(OP_NAMES, backend)
    for op, name in (overrides or {}).items():
        if op not in wanted:
            raise ConfigError.for_field("overrides", op, f"an op of {', '.join(OP_NAMES)}")
        wanted[op] = name
    for op, name in wanted.items():
        if name != "auto":
            _named(
                name, "kernels" if op not in (overrides or {}) else f"overrides[{op!r}]", backends
            )

    reasons = {b.name: b.probe(device, dtype, head_dim) for b in backends}
    loaded: dict[str, Mapping[str, object]] = {
        b.name: b.load(device, dtype, head_dim) for b in backends if reasons[b.name] is None
    }
    chosen: dict[str, Any] = {}
    choices: list[OpChoice] = []
    for op, name in wanted.items():
        passed: list[str] = []
        for candidate in backends if name == "auto" else (_named(name, "kernels", backends),):
            reason = reasons[candidate.name]
            if reason is None and op not in loaded[candidate.name]:
                reason = f"has no {op}"
            if reason is None:
                chosen[op] = loaded[candidate.name][op]
                why = "; ".join(passed) or ("first choice" if name == "auto" else "asked for")
                choices.append(OpChoice(op, candidate.name, why))
                break
            passed.append(f"{candidate.name}: {reason}")
        else:
            raise UnavailableError(
                f"no kernel for {op} on {device} with {dtype}, head_dim {head_dim} "
                f"({'; '.join(passed)}). "
                "Use kernels='auto' to fall back, or leave this op out of the override."
            )
    by_op = {choice.op: choice.backend for choice in choices}
    if by_op["linear"] != by_op["pack_linear"]:
        raise ConfigError.for_field(
            "overrides",
            {"linear": by_op["linear"], "pack_linear": by_op["pack_linear"]},
            "one backend for both",
            "The packed layout is private to a backend.",
        )
    return Ops(**chosen, choices=tuple(choices))
