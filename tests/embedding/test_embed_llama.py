"""The example that decodes a Llama checkpoint in C++: its tokens are those of the Python engine."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import ROOT

from ptd_engine import demo_model
from ptd_engine.config import SamplingParams
from ptd_engine.drafters import make_drafter
from ptd_engine.engine import Engine
from ptd_engine.model import load_model
from ptd_engine.runner import EagerRunner
from ptd_engine.testing import tiny

CONTEXT = 128
DRAFTERS = ("none", "ptd", "suffix", "hybrid")


def decode(program: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [str(program / "embed_llama"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def engine(directory: Path, drafter: str = "none", max_seq_len: int = CONTEXT) -> Engine:
    model = load_model(directory, max_seq_len=max_seq_len, kernels="cpu", num_threads=2)
    made = make_drafter(drafter, device_type="cpu", eos_ids=model.config.eos_token_ids)
    needs = made.needs()
    runner = EagerRunner(
        model, max_seq_len=max_seq_len, max_nodes=1 + needs.max_nodes, top_k=needs.top_k
    )
    return Engine(
        runner,
        made,
        max_seq_len=max_seq_len,
        vocab_size=model.config.vocab_size,
        eos_token_ids=model.config.eos_token_ids,
    )


def expected(served: Engine, prompt: list[int], *, ignore_eos: bool, count: int = 60) -> list[int]:
    generation = served.generate(
        prompt, SamplingParams(max_new_tokens=count, ignore_eos=ignore_eos)
    )
    for _ in generation:
        pass
    return generation.token_ids


@pytest.mark.parametrize(
    ("family", "dtype", "changes"),
    [
        ("llama3", torch.float32, {}),
        ("llama3", torch.bfloat16, {"tie_word_embeddings": True}),
        ("llama2", torch.bfloat16, {"head_dim": 32}),
    ],
    ids=["float32-gqa", "bfloat16-gqa-tied", "bfloat16-mha"],
)
def test_tokens_of_the_python_engine(
    examples: Path, tmp_path: Path, family: str, dtype: torch.dtype, changes: dict[str, Any]
) -> None:
    model = tiny.build(family, seed=3, **changes).to(dtype)
    directory = tiny.save(model, tmp_path / "model")
    served = engine(directory)
    limit = ("--max-seq-len", CONTEXT, "--threads", 2, "--max-new-tokens", 60)
    for index, prompt in enumerate(([5, 6, 7], [1] * 40, [9])):
        ignore_eos = index != 1
        options = ("--ignore-eos",) if ignore_eos else ()
        wanted = expected(served, prompt, ignore_eos=ignore_eos)
        for drafter in DRAFTERS:
            done = decode(examples, directory, *limit, *options, "--drafter", drafter, *prompt)
            assert done.returncode == 0, done.stderr
            assert [int(word) for word in done.stdout.split()] == wanted, drafter
            assert f"{len(wanted)} tokens in " in done.stderr


def test_a_prompt_of_several_chunks_from_standard_input(examples: Path, tmp_path: Path) -> None:
    directory = tiny.save(
        tiny.build("llama3", seed=4, max_position_embeddings=800).to(torch.bfloat16),
        tmp_path / "model",
    )
    prompt = [(i * i) % 97 for i in range(700)]
    done = subprocess.run(
        [examples / "embed_llama", directory, "--max-new-tokens", "20", "--ignore-eos"],
        input=" ".join(map(str, prompt)),
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    wanted = expected(engine(directory, max_seq_len=800), prompt, ignore_eos=True, count=20)
    assert [int(word) for word in done.stdout.split()] == wanted


def _rewrite_header(file: Path, change: Any) -> None:
    data = file.read_bytes()
    (size,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + size])
    change(header)
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + size :])


def _set(name: str, key: str, value: object) -> Any:
    return lambda header: header[name].__setitem__(key, value)


NORM = "model.norm.weight"
BAD_HEADERS = [
    (_set(NORM, "data_offsets", [0, 2**60]), "data_offsets[1] is not an integer from"),
    (_set(NORM, "data_offsets", [64, 0]), "data_offsets[1] is not an integer from 64"),
    (_set(NORM, "data_offsets", [0, 2]), "data_offsets do not fit the shape"),
    (_set(NORM, "shape", [2**40, 2**40]), "a size of the shape is not an integer"),
    (_set(NORM, "shape", [-1]), "a size of the shape is not an integer"),
    (_set(NORM, "dtype", "F8_E4M3"), "dtype F8_E4M3 is not supported"),
    (lambda header: header.pop(NORM), "the checkpoint lacks model.norm.weight"),
    (lambda header: header[NORM].pop("dtype"), "dtype, shape or data_offsets is missing"),
]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = tiny.build("llama3", seed=3, tie_word_embeddings=True).to(torch.bfloat16)
    return tiny.save(model, tmp_path_factory.mktemp("good") / "model")


@pytest.mark.parametrize(("change", "says"), BAD_HEADERS, ids=[says for _, says in BAD_HEADERS])
def test_damaged_headers(
    examples: Path, good: Path, tmp_path: Path, change: Any, says: str
) -> None:
    directory = Path(shutil.copytree(good, tmp_path / "model"))
    _rewrite_header(directory / "model.safetensors", change)
    done = decode(examples, directory, 1, 2)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr


def test_damaged_files(examples: Path, good: Path, tmp_path: Path) -> None:
    directory = Path(shutil.copytree(good, tmp_path / "model"))
    file = directory / "model.safetensors"
    data = file.read_bytes()
    for damaged, says in (
        (b"", "is empty"),
        (data[:5], "the header is longer than the file"),
        (struct.pack("<Q", 2**63) + data[8:], "the header is longer than the file"),
        (data[: len(data) // 2], "data_offsets"),
        (data[:8] + b"x" + data[9:], "not JSON at byte 0"),
    ):
        file.write_bytes(damaged)
        done = decode(examples, directory, 1, 2)
        assert done.returncode == 2
        assert says in done.stderr
    file.unlink()
    assert "has no .safetensors file" in decode(examples, directory, 1).stderr


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"architectures": ["Qwen3ForCausalLM"]}, "architectures is not LlamaForCausalLM"),
        ({"hidden_size": 0}, "hidden_size is not an integer from 1"),
        ({"hidden_size": 2**40}, "hidden_size is not an integer from 1"),
        ({"vocab_size": None}, "vocab_size is not an integer"),
        ({"num_key_value_heads": 3}, "num_key_value_heads does not divide"),
        ({"head_dim": 20}, "head_dim is not a multiple of 16"),
        ({"intermediate_size": 96}, "wrong shape"),
        ({"num_hidden_layers": 3}, "the checkpoint lacks model.layers.2."),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope_type yarn is not supported"),
        ({"attention_bias": True}, "attention_bias is not supported"),
        # The rotation's type has two spellings, and a factor without a type changes it too.
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_type linear is not supported"),
        ({"rope_scaling": {"factor": 2.0}}, "rope_scaling.factor is not supported"),
        ({"rope_scaling": "linear"}, "rope_scaling is not an object"),
        ({"head_dim": None, "hidden_size": 2, "num_attention_heads": 4}, "head_dim is not a"),
        ({"rms_norm_eps": -1}, "rms_norm_eps is not a number from 0 to 1"),
        ({"eos_token_id": "</s>"}, "config.json: eos_token_id is not an integer"),
        ({"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 32}, "wrong shape"),
    ],
)
def test_unsupported_configurations(
    examples: Path, good: Path, tmp_path: Path, change: dict[str, Any], says: str
) -> None:
    directory = Path(shutil.copytree(good, tmp_path / "model"))
    file = directory / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    done = decode(examples, directory, 1, 2)
    assert done.returncode == 2
    assert says in done.stderr


def test_a_vocabulary_that_the_weights_do_not_have_takes_no_memory(
    examples: Path, good: Path, tmp_path: Path
) -> None:
    # The logits of 2^23 ids and a hundred rows and more would be gigabytes.
    directory = Path(shutil.copytree(good, tmp_path / "model"))
    file = directory / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "vocab_size": 2**23}))
    options = ("--max-seq-len", "64", "--threads", "1", "--drafter", "hybrid")
    limited = ("/bin/sh", "-c", 'ulimit -v 2500000 && exec "$@"', "sh")
    done = subprocess.run(
        [*limited, examples / "embed_llama", directory, *options, "1"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 2
    assert "embed_tokens: wrong shape" in done.stderr


def test_tensors_of_another_model_are_not_passed_over(
    examples: Path, good: Path, tmp_path: Path
) -> None:
    directory = Path(shutil.copytree(good, tmp_path / "model"))
    bias = "model.layers.0.self_attn.q_proj.bias"
    _rewrite_header(
        directory / "model.safetensors", lambda header: header.update({bias: header[NORM]})
    )
    done = decode(examples, directory, 1)
    assert done.returncode == 2
    assert f"a tensor that no Llama model has: {bias}" in done.stderr


def test_only_the_files_of_the_index_are_read(examples: Path, good: Path, tmp_path: Path) -> None:
    directory = Path(shutil.copytree(good, tmp_path / "model"))
    wanted = decode(examples, directory, 1, 2).stdout
    stray = directory / "consolidated.safetensors"
    stray.write_bytes(b"another copy")
    assert decode(examples, directory, 1, 2).stdout == wanted
    part = directory / "model-00001-of-00001.safetensors"
    (directory / "model.safetensors").rename(part)
    assert "has no .safetensors file" in decode(examples, directory, 1).stderr
    index = directory / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {NORM: part.name}}))
    assert decode(examples, directory, 1, 2).stdout == wanted
    shutil.copy(part, directory / "second.safetensors")
    for files, says in (
        ([part.name, "model-00002-of-00002.safetensors"], "00002.safetensors cannot be read"),
        ([part.name, "second.safetensors"], "stands twice"),
        (["../model/second.safetensors"], "is no plain name of a .safetensors file"),
        (["config.json"], "is no plain name of a .safetensors file"),
        ([], "no weight_map"),
    ):
        index.write_text(json.dumps({"weight_map": {str(i): n for i, n in enumerate(files)}}))
        done = decode(examples, directory, 1)
        assert done.returncode == 2
        assert says in done.stderr


def test_a_text_ends_at_the_ids_of_both_configurations(
    examples: Path, good: Path, tmp_path: Path
) -> None:
    directory = Path(shutil.copytree(good, tmp_path / "model"))
    tokens = [
        int(word) for word in decode(examples, directory, "--ignore-eos", 1, 2).stdout.split()
    ]
    config = directory / "config.json"
    absent = next(token for token in range(97) if token not in tokens)
    config.write_text(json.dumps({**json.loads(config.read_text()), "eos_token_id": absent}))
    end = tokens[5]
    generation = directory / "generation_config.json"
    generation.write_text(json.dumps({"eos_token_id": [absent, end]}))
    done = decode(examples, directory, 1, 2)
    assert [int(word) for word in done.stdout.split()] == tokens[: tokens.index(end) + 1]
    generation.write_text("{")
    assert "generation_config.json: not JSON" in decode(examples, directory, 1, 2).stderr


def test_bad_arguments(examples: Path, good: Path) -> None:
    for arguments, says in (
        ((), "usage:"),
        ((good, 97), "token id 97 is not below vocab_size=97"),
        ((good, "x"), "a token id='x' is not an integer"),
        ((good, "--drafter", "magic", 1), "none, ptd, suffix, hybrid"),
        ((good, "--threads", 0, 1), "--threads='0'"),
        ((good, "--what", 1), "unknown option --what"),
        ((good, "--threads"), "needs a value"),
        ((good, "--max-seq-len", 4, 1, 2, 3, 4), "prompt length=4"),
        ((good / "nowhere", 1), "config.json cannot be read"),
    ):
        done = decode(examples, *arguments)
        assert done.returncode == 2
        assert says in done.stderr


@pytest.mark.demo
def test_tokens_of_the_demo_model(examples: Path, tmp_path: Path) -> None:
    cached = demo_model.cached_path()
    if cached is None:
        pytest.skip("the demo model is not in the cache: make demo-model fetches it")
    exported = tmp_path / "demo"
    script = ROOT / "examples/embed_llama/export_model.py"
    subprocess.run([sys.executable, script, str(cached), exported], check=True, timeout=300)
    prompt = [1, 504, 4545, 282, 4649, 314]
    wanted = expected(engine(exported, "none", 512), prompt, ignore_eos=True, count=48)
    for drafter in ("none", "ptd"):
        done = decode(
            examples,
            *(exported, "--max-seq-len", 512, "--threads", 2, "--max-new-tokens", 48),
            *("--ignore-eos", "--drafter", drafter, *prompt),
        )
        assert done.returncode == 0, done.stderr
        assert [int(word) for word in done.stdout.split()] == wanted, drafter
