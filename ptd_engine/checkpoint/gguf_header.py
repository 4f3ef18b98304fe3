"""Bounds-checked reading of a GGUF header: metadata and tensor positions, no tensor data.

A GGUF file is untrusted input. Every count, length and offset is compared with the bytes that are
really there *before* it is used, so a truncated or damaged file ends in a `CheckpointError` instead
of an endless loop or a read past the end (`gguf.GGUFReader` trusts its counts; it is also some
twenty times slower on a 50,000-entry vocabulary because it keeps a numpy view per string).

Layout (GGUF v2/v3, little endian): magic, version u32, tensor_count u64, kv_count u64, kv pairs,
tensor infos (name, n_dims u32, dims u64[n_dims] innermost first, type u32, offset u64), padding,
tensor data.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from ptd_engine.errors import CheckpointError

Value: TypeAlias = "bool | int | float | str | list[Value]"

_SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_STRING, _ARRAY = 8, 9
_MAX_DIMS = 4
_MAX_ARRAY_DEPTH = 4
_MAX_ALIGNMENT = 1 << 16


@dataclass(frozen=True)
class TensorInfo:
    """Where one tensor lies. `shape` is outermost first (numpy order); `offset` is absolute, in
    bytes.
    """

    name: str
    shape: tuple[int, ...]
    ggml_type: GGMLQuantizationType
    offset: int
    nbytes: int


@dataclass(frozen=True)
class GGUFHeader:
    """The metadata and the tensor table of one GGUF file."""

    path: Path
    metadata: Mapping[str, Value]
    tensors: Mapping[str, TensorInfo]

    def integer(self, key: str, default: int | None = None) -> int:
        """An integer value; `CheckpointError` if it is missing without a default or of another
        kind.
        """
        value = self.metadata.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._bad(key, value, "an integer")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A float value (a float32 comes back as its shortest decimal: 1e-05, not
        9.99999974e-06).
        """
        value = self.metadata.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._bad(key, value, "a number")
        return float(str(np.float32(value)))

    def string(self, key: str, default: str | None = None) -> str:
        """A string value."""
        value = self.metadata.get(key, default)
        if not isinstance(value, str):
            raise self._bad(key, value, "a string")
        return value

    def boolean(self, key: str, default: bool | None = None) -> bool:
        """A boolean value."""
        value = self.metadata.get(key, default)
        if not isinstance(value, bool):
            raise self._bad(key, value, "a boolean")
        return value

    def strings(self, key: str) -> list[str]:
        """An array of strings."""
        value = self.metadata.get(key)
        if not isinstance(value, list):
            raise self._bad(key, value, "an array of strings")
        found = [item for item in value if isinstance(item, str)]
        if len(found) != len(value):
            raise self._bad(key, "an array of another type", "an array of strings")
        return found

    def numbers(self, key: str) -> list[float]:
        """An array of integers or floats, as floats."""
        value = self.metadata.get(key)
        if not isinstance(value, list):
            raise self._bad(key, value, "an array of numbers")
        found = [float(item) for item in value if isinstance(item, int | float)]
        if len(found) != len(value):
            raise self._bad(key, "an array of another type", "an array of numbers")
        return found

    def _bad(self, key: str, value: object, allowed: str) -> CheckpointError:
        hint = f"The metadata of {self.path} is incomplete or damaged: convert the model again."
        return CheckpointError.for_field(key, value, allowed, hint)


def read_gguf_header(path: str | Path) -> GGUFHeader:
    """Read the metadata and the tensor table of a GGUF file.

    Raises:
        CheckpointError: no such file, not a GGUF file, an unsupported version, or sizes and offsets
            that do not fit the file (truncated download, damage).
    """
    path = Path(path)
    if not path.is_file():
        raise CheckpointError(f"GGUF file not found: {path}. Check the path.")
    if path.stat().st_size < 24:
        raise CheckpointError(f"{path} is too short to be a GGUF file: incomplete download?")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return _Scanner(path, data).header()


class _Scanner:
    """A cursor over the mapped file that refuses to pass its end."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path = path
        self.data = data
        self.size = len(data)
        self.at = 0

    def header(self) -> GGUFHeader:
        if self.take(4) != b"GGUF":
            raise CheckpointError(
                f"{self.path} is not a GGUF file: its first bytes are not 'GGUF'."
            )
        version = self.scalar("I")
        if version not in (2, 3):
            raise CheckpointError.for_field(
                f"GGUF version of {self.path}",
                version,
                "2 or 3, little endian",
                "Convert the model with a current converter.",
            )
        n_tensors, n_pairs = int(self.scalar("Q")), int(self.scalar("Q"))
        self.check_count(n_pairs, 13, "metadata pairs")
        self.check_count(n_tensors, 33, "tensors")
        metadata: dict[str, Value] = {}
        for _ in range(n_pairs):
            key = self.text()
            if key in metadata:
                raise self.damaged(f"metadata key {key!r} occurs twice")
            metadata[key] = self.value(int(self.scalar("I")), _MAX_ARRAY_DEPTH)
        alignment = metadata.get("general.alignment", 32)
        if (
            not isinstance(alignment, int)
            or not 0 < alignment <= _MAX_ALIGNMENT
            or alignment & (alignment - 1)
        ):
            raise self.damaged(f"general.alignment {alignment!r} is not a power of two up to 65536")
        raw = [self.tensor_entry() for _ in range(n_tensors)]
        start = -(-self.at // alignment) * alignment
        tensors: dict[str, TensorInfo] = {}
        for name, dims, type_id, offset in raw:
            if name in tensors:
                raise self.damaged(f"tensor {name!r} occurs twice")
            if offset % alignment:
                raise self.damaged(f"tensor {name!r}: offset {offset} is not {alignment}-aligned")
            tensors[name] = self.tensor_info(name, dims, type_id, start + offset)
        self.check_overlap(tensors)
        return GGUFHeader(self.path, metadata, tensors)

    def tensor_entry(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self.text()
        n_dims = int(self.scalar("I"))
        if not 1 <= n_dims <= _MAX_DIMS:
            raise self.damaged(f"tensor {name!r} has {n_dims} dimensions")
        dims = struct.unpack(f"<{n_dims}Q", self.take(8 * n_dims))
        return name, dims, int(self.scalar("I")), int(self.scalar("Q"))

    def tensor_info(
        self, name: str, dims: tuple[int, ...], type_id: int, offset: int
    ) -> TensorInfo:
        try:
            ggml_type = GGMLQuantizationType(type_id)
        except ValueError:
            raise self.damaged(f"tensor {name!r} has the unknown ggml type {type_id}") from None
        block, block_bytes = GGML_QUANT_SIZES[ggml_type]
        elements = 1
        for dim in dims:
            elements *= dim
        if elements == 0 or dims[0] % block:
            raise self.damaged(
                f"tensor {name!r}: shape {dims} is not made of {ggml_type.name} blocks"
            )
        nbytes = elements // block * block_bytes
        if offset + nbytes > self.size:
            raise self.damaged(
                f"tensor {name!r} needs bytes {offset} to {offset + nbytes} of {self.size}"
            )
        return TensorInfo(name, tuple(reversed(dims)), ggml_type, offset, nbytes)

    def check_overlap(self, tensors: dict[str, TensorInfo]) -> None:
        end, previous = 0, ""
        for info in sorted(tensors.values(), key=lambda t: t.offset):
            if info.offset < end:
                raise self.damaged(f"tensors {previous!r} and {info.name!r} overlap")
            end, previous = info.offset + info.nbytes, info.name

    def value(self, kind: int, depth: int) -> Value:
        if kind == _STRING:
            return self.text()
        if kind == _ARRAY:
            item, count = int(self.scalar("I")), int(self.scalar("Q"))
            if code := _SCALARS.get(item):
                width = struct.calcsize(f"<{code}")
                self.check_count(count, width, "array items")
                return list(struct.unpack(f"<{count}{code}", self.take(width * count)))
            if depth == 0:
                raise self.damaged("metadata arrays are nested too deeply")
            self.check_count(count, 8, "array items")
            return [self.value(item, depth - 1) for _ in range(count)]
        if code := _SCALARS.get(kind):
            scalar: int | float | bool = self.scalar(code)
            return scalar
        raise self.damaged(f"metadata value type {kind} is unknown")

    def text(self) -> str:
        raw = self.take(int(self.scalar("Q")))
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            raise self.damaged(f"a string before byte {self.at} is not UTF-8") from None

    def scalar(self, code: str) -> int | float:
        value: int | float = struct.unpack(f"<{code}", self.take(struct.calcsize(f"<{code}")))[0]
        return value

    def take(self, count: int) -> bytes:
        if count > self.size - self.at:
            raise self.damaged(f"{count} bytes are needed at byte {self.at} of {self.size}")
        self.at += count
        return self.data[self.at - count : self.at]

    def check_count(self, count: int, least_bytes: int, what: str) -> None:
        if count * least_bytes > self.size - self.at:
            raise self.damaged(f"{count} {what} do not fit into {self.size} bytes")

    def damaged(self, reason: str) -> CheckpointError:
        return CheckpointError(
            f"{self.path} is damaged or incomplete: {reason}. Download or convert it again."
        )
