"""Drafter by name or by configuration: what `LLM.from_pretrained(drafter=...)` accepts.

A drafter can only add rows to a step's tree, so none can change the output.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from . import _core
from .config import PTDConfig
from .errors import ConfigError

DrafterSpec = str | PTDConfig | _core.Drafter

# What a bare "ptd" means. On a GPU 64 rows cost about as much as one, so the paper's tree pays. On
# a CPU every row costs: docs/cpu_tree.md measures this tree among others.
GPU_DEFAULT = PTDConfig()
CPU_DEFAULT = PTDConfig(
    width=1, depth=2, max_draft_nodes=2, max_candidate_nodes=8, recycle_verified=True
)


@dataclass(frozen=True, slots=True)
class DrafterEntry:
    """A drafter's name and one line for users."""

    name: str
    summary: str


REGISTERED = (
    DrafterEntry("none", "plain decoding, one token a step"),
    DrafterEntry("ptd", "Progressive Tree Drafting"),
)


def resolve(spec: DrafterSpec, device_type: str) -> str | PTDConfig | _core.Drafter:
    """Turn a bare "ptd" into the configuration it means on this device.

    Raises:
        ConfigError: an unknown name or an object that is no drafter.
    """
    if isinstance(spec, PTDConfig | _core.Drafter):
        return spec
    if spec == "ptd":
        return CPU_DEFAULT if device_type == "cpu" else GPU_DEFAULT
    if spec == "none":
        return spec
    names = ", ".join(repr(entry.name) for entry in REGISTERED)
    raise ConfigError.for_field("drafter", spec, f"one of {names}, a PTDConfig or a Drafter object")


def make_drafter(
    spec: DrafterSpec, *, device_type: str, eos_ids: Sequence[int] = ()
) -> _core.Drafter:
    """Build the drafter that `spec` means on a device of this type ("cpu" or "cuda").

    Args:
        spec: a name, a configuration, or a ready drafter (returned as it is).
        device_type: decides what a bare "ptd" means.
        eos_ids: tokens after which PTD drafts nothing.

    Raises:
        ConfigError: an unknown name or an object that is no drafter.
    """
    resolved = resolve(spec, device_type)
    if isinstance(resolved, _core.Drafter):
        return resolved
    if isinstance(resolved, PTDConfig):
        return _core.PTDDrafter(
            width=resolved.width,
            depth=resolved.depth,
            max_draft_nodes=resolved.max_draft_nodes,
            max_candidate_nodes=resolved.max_candidate_nodes,
            pool_nodes_per_key=resolved.pool_nodes_per_key,
            pool_max_keys=resolved.pool_max_keys,
            recycle_verified=resolved.recycle_verified,
            share_pool=resolved.share_pool,
            seed=resolved.seed,
            eos_ids=list(eos_ids),
        )
    return _core.AutoregressiveDrafter()
