"""The key/value cache of one sequence: static memory, allocated once."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from ptd_engine.errors import ConfigError

_CGROUPS = (  # limit, use and statistics of this process's memory, by version
    ("/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
    (
        "/sys/fs/cgroup/memory",
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        "total_inactive_file",
    ),
)


class KVCache:
    """Keys and values of all layers, [L, Hkv, S, D], zero at the start.

    Rows below the runner's prefix_len are committed, the rows above hold the current step's tree. A
    head's rows are contiguous, so slicing to the live length is a view.

    Attributes:
        k, v: [num_layers, num_kv_heads, capacity, head_dim].
    """

    def __init__(
        self,
        num_layers: int,
        num_kv_heads: int,
        capacity: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device | str,
    ) -> None:
        """Allocate the cache.

        Args:
            capacity: rows S; the longest sequence plus the rows of the largest step.

        Raises:
            ConfigError: a size below 1, or more memory than the device gives.
        """
        shape = (num_layers, num_kv_heads, capacity, head_dim)
        if min(shape) < 1:
            raise ConfigError.for_field("KVCache shape", shape, "sizes >= 1")
        self.capacity = capacity
        needed = capacity * row_bytes(num_layers, num_kv_heads, head_dim, dtype)
        what = f"a cache of {capacity} rows (the context, and those of a step)"
        _check_memory(what, needed, device)
        try:
            self.k: Tensor = torch.zeros(shape, dtype=dtype, device=device)
            self.v: Tensor = torch.zeros(shape, dtype=dtype, device=device)
        except RuntimeError as error:
            raise _too_large(what, needed, device) from error

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values together."""
        return self.k.nbytes + self.v.nbytes


def row_bytes(num_layers: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype) -> int:
    """Bytes of the keys and values of one position."""
    return 2 * num_layers * num_kv_heads * head_dim * dtype.itemsize


def check_context_memory(max_seq_len: int, bytes_a_row: int, device: torch.device) -> None:
    """Refuse a context whose cache cannot be had, before anything is loaded or allocated.

    Raises:
        ConfigError: naming `max_seq_len`, the bytes needed, those available and what to do.
    """
    needed, available = max_seq_len * bytes_a_row, available_bytes(device)
    if available is not None and needed > available:
        longest = f" A cache of {available // bytes_a_row} tokens would fit."
        raise _too_large(f"max_seq_len={max_seq_len}", needed, device, longest)


def available_bytes(device: torch.device | str) -> int | None:
    """Memory that an allocation may still take on a device; None if nothing tells."""
    device = torch.device(device)
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        idle = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return free + idle
    if device.type != "cpu":
        return None
    found = [_machine_bytes(), *(_cgroup_bytes(*files) for files in _CGROUPS)]
    return min((count for count in found if count is not None), default=None)


def _check_memory(what: str, needed: int, device: torch.device | str) -> None:
    available = available_bytes(device)
    if available is not None and needed > available:
        raise _too_large(what, needed, device)


def _too_large(what: str, needed: int, device: torch.device | str, advice: str = "") -> ConfigError:
    available = available_bytes(device)
    has = "that much is not there" if available is None else f"{_gib(available)} are available"
    return ConfigError(
        f"{what} does not fit in memory: the key/value cache needs {_gib(needed)}, and {has} on "
        f"{device}.{advice} Ask for less with max_seq_len, which holds a prompt and its output "
        "(transformers' generate: max_new_tokens), or free memory. `ptd-engine plan` tells what a "
        "context needs."
    )


def _gib(count: int) -> str:
    return f"{count / 2**30:.2f} GiB ({count} bytes)"


def _machine_bytes() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    pairs = (line.split(":", 1) for line in lines if ":" in line)
    kib = {name: int(rest.split()[0]) for name, rest in pairs}
    if "MemAvailable" not in kib:
        return None
    return 1024 * (kib["MemAvailable"] + kib.get("SwapFree", 0))


def _cgroup_bytes(folder: str, limit: str, used: str, reclaimable: str) -> int | None:
    """What the process's control group leaves; None without one, or one without a limit."""
    try:
        most = int((Path(folder) / limit).read_text())
        current = int((Path(folder) / used).read_text())
        stat = (Path(folder) / "memory.stat").read_text().split()
    except (OSError, ValueError):  # no such files, or "max"
        return None
    cached = int(stat[stat.index(reclaimable) + 1]) if reclaimable in stat else 0
    return max(0, most - current + cached)
