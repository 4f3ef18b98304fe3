"""Every supported tensor type, read back from a file and compared with a literal dequantiser."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from ggml_blocks import BLOCKS
from gguf_builder import HIDDEN, VOCAB, model_metadata, model_tensors, write_gguf

from ptd_engine.checkpoint.gguf_file import SUPPORTED_TYPES, GGUFCheckpoint
from ptd_engine.errors import CheckpointError

EMBEDDING = "model.embed_tokens.weight"
TYPES = gguf.GGMLQuantizationType


def with_embedding(path: Path, array: np.ndarray, raw_type: TYPES | None = None) -> GGUFCheckpoint:
    """The toy model with another embedding (its width may differ: only this tensor is read)."""
    tensors = {n: (t, None) for n, t in model_tensors().items()}
    return GGUFCheckpoint(
        write_gguf(path, model_metadata(), {**tensors, "token_embd.weight": (array, raw_type)})
    )


@pytest.mark.parametrize("name", BLOCKS)
def test_random_blocks_equal_the_literal_dequantiser(name: str, tmp_path: Path) -> None:
    elements, nbytes, literal, halves = BLOCKS[name]
    rng = random.Random(name)
    rows = []
    for _ in range(VOCAB):
        row = b""
        for _ in range(2):
            block = bytearray(rng.randbytes(nbytes))
            for at in halves:
                struct.pack_into("<e", block, at, rng.uniform(-2, 2))
            row += bytes(block)
        rows.append(row)
    raw = np.frombuffer(b"".join(rows), dtype=np.uint8).reshape(VOCAB, 2 * nbytes)
    checkpoint = with_embedding(tmp_path / "m.gguf", raw, TYPES[name])
    wanted = torch.tensor(
        [literal(r[:nbytes]) + literal(r[nbytes:]) for r in rows], dtype=torch.float64
    )
    found = checkpoint.tensor(EMBEDDING)
    assert found.shape == (VOCAB, 2 * elements) and found.dtype == torch.float32
    # Products of a half, a small scale and a small integer: only float32 rounding may differ.
    torch.testing.assert_close(found.double(), wanted, rtol=1e-6, atol=1e-4)
    assert checkpoint.dtype_name is None


@pytest.mark.parametrize("name", ["Q8_0", "Q4_0", "Q4_1"])
def test_quantised_tensor_is_near_its_source(name: str, tmp_path: Path) -> None:
    source = model_tensors()["token_embd.weight"]
    raw = gguf.quants.quantize(source, TYPES[name])
    found = with_embedding(tmp_path / "m.gguf", raw, TYPES[name]).tensor(EMBEDDING)
    step = np.abs(source).max() / (127 if name == "Q8_0" else 7)
    assert float((found - torch.from_numpy(source)).abs().max()) <= step


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("F32", torch.float32), ("F16", torch.float16), ("BF16", torch.bfloat16)],
)
def test_plain_types_keep_their_bits(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    source = torch.randn(VOCAB, HIDDEN, generator=torch.Generator().manual_seed(3)).to(dtype)
    if dtype == torch.bfloat16:
        raw = source.view(torch.uint8).numpy()
        checkpoint = with_embedding(tmp_path / "m.gguf", raw, TYPES.BF16)
    else:
        checkpoint = with_embedding(tmp_path / "m.gguf", source.numpy())
    found = checkpoint.tensor(EMBEDDING)
    assert found.dtype == dtype
    assert torch.equal(found, source)


@pytest.mark.parametrize("kind", [np.float32, np.float16])
def test_dtype_name_is_that_of_the_matrices(kind: type, tmp_path: Path) -> None:
    # Converters leave the norms in float32 whatever the type of the matrices.
    tensors = {n: (t.astype(kind) if t.ndim > 1 else t, None) for n, t in model_tensors().items()}
    checkpoint = GGUFCheckpoint(write_gguf(tmp_path / "m.gguf", model_metadata(), tensors))
    assert checkpoint.dtype_name == np.dtype(kind).name
    assert checkpoint.tensor("model.norm.weight").dtype == torch.float32


def test_other_type_is_refused_by_name(tmp_path: Path) -> None:
    raw = gguf.quants.quantize(model_tensors()["token_embd.weight"], TYPES.Q5_0)
    with pytest.raises(CheckpointError) as error:
        with_embedding(tmp_path / "m.gguf", raw, TYPES.Q5_0)
    text = str(error.value)
    assert "token_embd.weight" in text and "Q5_0" in text
    assert all(name in text for name in SUPPORTED_TYPES)
