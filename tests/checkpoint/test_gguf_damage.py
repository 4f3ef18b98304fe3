"""A truncated or corrupted GGUF file ends in a CheckpointError: no hang, no crash, no garbage."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import gguf
import pytest
from gguf_builder import write_model

from ptd_engine.checkpoint.gguf_file import GGUFCheckpoint
from ptd_engine.checkpoint.gguf_header import read_gguf_header
from ptd_engine.errors import CheckpointError

HUGE = 1 << 60


@pytest.fixture
def model(tmp_path: Path) -> Path:
    extra = {"tokenizer.ggml.tokens": [f"t{i}" for i in range(40)], "x.numbers": [1, 2, 3]}
    return write_model(tmp_path / "m.gguf", extra=extra)


def test_header_equals_the_package_reader(model: Path) -> None:
    header, reader = read_gguf_header(model), gguf.GGUFReader(model)
    fields = {k: f.contents() for k, f in reader.fields.items() if not k.startswith("GGUF.")}
    assert dict(header.metadata) == fields
    assert {n: (t.ggml_type, t.offset, t.nbytes, t.shape) for n, t in header.tensors.items()} == {
        t.name: (t.tensor_type, t.data_offset, t.n_bytes, tuple(reversed(t.shape.tolist())))
        for t in reader.tensors
    }


def test_every_truncation_is_refused(model: Path) -> None:
    whole = model.read_bytes()
    header_end = min(t.offset for t in read_gguf_header(model).tensors.values())
    for size in [*range(0, header_end, 7), header_end, len(whole) // 2, len(whole) - 33]:
        model.write_bytes(whole[:size])
        with pytest.raises(CheckpointError):
            GGUFCheckpoint(model)


def test_random_header_damage_never_escapes(model: Path) -> None:
    whole = model.read_bytes()
    header_end = min(t.offset for t in read_gguf_header(model).tensors.values())
    rng = random.Random(11)
    refused = 0
    for _ in range(1500):
        data = bytearray(whole)
        for _ in range(rng.choice([1, 1, 2, 8])):
            data[rng.randrange(header_end)] = rng.choice([0, 1, 127, 255, rng.randrange(256)])
        model.write_bytes(data)
        try:
            checkpoint = GGUFCheckpoint(model)
            for name in checkpoint.names():
                checkpoint.tensor(name)
        except CheckpointError:
            refused += 1
    assert refused > 300


@pytest.mark.parametrize("at", [8, 16])
def test_absurd_counts_end_at_once(model: Path, at: int) -> None:
    data = bytearray(model.read_bytes())
    struct.pack_into("<Q", data, at, HUGE)
    model.write_bytes(data)
    with pytest.raises(CheckpointError, match="do not fit"):
        read_gguf_header(model)


@pytest.mark.parametrize("needle", [b"tokenizer.ggml.tokens", b"x.numbers"])
def test_absurd_array_length_ends_at_once(model: Path, needle: bytes) -> None:
    data = bytearray(model.read_bytes())
    struct.pack_into("<Q", data, data.index(needle) + len(needle) + 8, HUGE)
    model.write_bytes(data)
    with pytest.raises(CheckpointError, match="damaged or incomplete"):
        read_gguf_header(model)


def test_overlapping_and_outlying_tensors_are_refused(model: Path) -> None:
    whole = model.read_bytes()
    name = b"blk.1.ffn_up.weight"
    at = whole.rindex(name) + len(name) + 4 + 16 + 4
    for offset, reason in ((0, "overlap"), (HUGE, "needs bytes"), (33, "aligned")):
        data = bytearray(whole)
        struct.pack_into("<Q", data, at, offset)
        model.write_bytes(data)
        with pytest.raises(CheckpointError, match=reason):
            read_gguf_header(model)


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="not found"):
        read_gguf_header(tmp_path / "none.gguf")
    path = tmp_path / "text.gguf"
    path.write_text("this is not a model, just some text")
    with pytest.raises(CheckpointError, match="not a GGUF file"):
        read_gguf_header(path)
    path.write_bytes(b"GGUF" + struct.pack(">I", 3) + bytes(64))
    with pytest.raises(CheckpointError, match="little endian"):
        read_gguf_header(path)
