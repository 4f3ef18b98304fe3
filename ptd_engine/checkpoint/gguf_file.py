"""A GGUF file as a checkpoint: HF config, HF tensor names, tensors as torch tensors.

The header is read with bounds checks (gguf_header.py), so a slice here never leaves the file.
Quantised types are dequantised to float32 by `gguf.quants`; F32, F16 and BF16 keep their type. The
llama converter permutes the rows of q and k for ggml's interleaved rotary embedding; they are put
back into the half-split order here (qwen files are not permuted).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray

from ptd_engine.checkpoint.gguf_config import architecture, hf_config
from ptd_engine.checkpoint.gguf_header import GGUFHeader, TensorInfo, read_gguf_header
from ptd_engine.checkpoint.gguf_names import ROPE_FACTORS, hf_name
from ptd_engine.errors import CheckpointError

_PLAIN = {
    GGMLQuantizationType.F32: torch.float32,
    GGMLQuantizationType.F16: torch.float16,
    GGMLQuantizationType.BF16: torch.bfloat16,
}
_QUANTISED = tuple(GGMLQuantizationType[name] for name in ("Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q6_K"))
SUPPORTED_TYPES = tuple(t.name for t in (*_PLAIN, *_QUANTISED))


class GGUFCheckpoint:
    """The `Checkpoint` of one GGUF file.

    Attributes:
        path: the file.
        config: HF-style config dict (see gguf_config.hf_config).
        generation_config: bos and eos ids of the metadata, as generation_config.json would give
            them.
        dtype_name: "float32", "float16" or "bfloat16" of the weight matrices, None if any is
            quantised.

    Raises:
        CheckpointError: a missing or damaged file, an unsupported architecture, tensor type or
            feature, or a tensor that the architecture does not have.
    """

    def __init__(self, path: str | Path) -> None:
        self._header: GGUFHeader = read_gguf_header(path)
        self.path = self._header.path
        self._data: NDArray[np.uint8] = np.memmap(self.path, dtype=np.uint8, mode="r")
        self._arch = architecture(self._header)
        _check_types(self._header)
        factors = self._header.tensors.get(ROPE_FACTORS)
        self.config: dict[str, Any] = hf_config(
            self._header, None if factors is None else self._read(factors).flatten().tolist()
        )
        self._tensors = _by_hf_name(self._header)
        self.generation_config: dict[str, Any] = {
            key: self.config[key] for key in ("bos_token_id", "eos_token_id") if key in self.config
        }
        self.dtype_name = _dtype_name(self._header)

    @property
    def header(self) -> GGUFHeader:
        """The parsed header: metadata and tensor table."""
        return self._header

    def names(self) -> list[str]:
        """The HF names of all tensors, in file order."""
        return list(self._tensors)

    def tensor(self, name: str) -> torch.Tensor:
        """A fresh CPU tensor by HF name, in HF layout; float32 if the stored type is quantised."""
        info = self._tensors.get(name)
        if info is None:
            raise CheckpointError(
                f"{self.path} has no tensor {name!r}: the file is not a complete model."
            )
        value = self._read(info)
        if self._arch == "llama":
            if ".attn_q." in info.name:
                return _half_split(info, value, self.config["num_attention_heads"])
            if ".attn_k." in info.name:
                return _half_split(info, value, self.config["num_key_value_heads"])
        return value

    def _read(self, info: TensorInfo) -> torch.Tensor:
        raw = self._data[info.offset : info.offset + info.nbytes]
        if dtype := _PLAIN.get(info.ggml_type):
            return torch.from_numpy(raw.copy()).view(dtype).reshape(info.shape)
        rows = raw.reshape(*info.shape[:-1], -1)
        return torch.from_numpy(dequantize(rows, info.ggml_type)).reshape(info.shape)


def _half_split(info: TensorInfo, value: torch.Tensor, heads: int) -> torch.Tensor:
    """Undo the interleaving of rotary pairs: [heads, dim/2, 2, ...] -> [heads, 2, dim/2, ...]."""
    if value.shape[0] % (2 * heads):
        raise CheckpointError.for_field(
            f"rows of {info.name}",
            value.shape[0],
            f"a multiple of 2 x {heads} heads",
            "The file is damaged or its metadata belongs to another model.",
        )
    pairs = value.reshape(heads, value.shape[0] // heads // 2, 2, *value.shape[1:])
    return pairs.transpose(1, 2).reshape(value.shape)


def _check_types(header: GGUFHeader) -> None:
    for info in header.tensors.values():
        if info.ggml_type not in _PLAIN and info.ggml_type not in _QUANTISED:
            raise CheckpointError.for_field(
                f"type of tensor {info.name}",
                info.ggml_type.name,
                ", ".join(SUPPORTED_TYPES),
                f"Convert {header.path} to one of these types.",
            )


def _by_hf_name(header: GGUFHeader) -> dict[str, TensorInfo]:
    found: dict[str, TensorInfo] = {}
    unknown: list[str] = []
    for name, info in header.tensors.items():
        if name == ROPE_FACTORS:
            continue
        hf = hf_name(name)
        if hf is None:
            unknown.append(name)
        else:
            found[hf] = info
    if unknown:
        raise CheckpointError.for_field(
            f"tensors of {header.path}",
            unknown,
            "the tensors of the llama family",
            "The file holds a variant of the model that is not supported.",
        )
    return found


def _dtype_name(header: GGUFHeader) -> str | None:
    """The one type of the weight matrices; the widest if plain types are mixed."""
    matrices = {info.ggml_type for info in header.tensors.values() if len(info.shape) > 1}
    if not matrices <= set(_PLAIN):
        return None
    if len(matrices) == 1:
        return str(_PLAIN[matrices.pop()]).removeprefix("torch.")
    return "float32"
