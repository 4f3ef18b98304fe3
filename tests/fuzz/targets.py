"""What is fuzzed: functions over bytes that return whatever the bytes are, or raise a finding.

The first byte of an input chooses: an even one is followed by the raw content, an odd one by
choices that change a document which is right (so that an input goes past the first checks).
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from fuzz import gguf_documents
from fuzz.choices import Choices, mutated, to_json
from ptd_engine.checkpoint import open_checkpoint
from ptd_engine.checkpoint.generation_defaults import GenerationDefaults
from ptd_engine.checkpoint.gguf_file import GGUFCheckpoint
from ptd_engine.errors import PTDError
from ptd_engine.model import ModelConfig, load_model
from ptd_engine.model.weights import expected_shapes
from ptd_engine.server.failures import ApiError, encode
from ptd_engine.server.parsing import parse
from ptd_engine.server.protocol import ChatRequest, CompletionRequest
from ptd_engine.text import load_tokenizer
from ptd_engine.text.messages import check_messages

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 16,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "rope_theta": 10000.0,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": [2, 3],
    "dtype": "float32",
}
_YARN = {"rope_type": "yarn", "factor": 2.0, "beta_fast": 32, "beta_slow": 1, "rope_theta": 1e4}
_QWEN = {"architectures": ["Qwen2ForCausalLM"], "use_sliding_window": True, "sliding_window": 32}
CONFIGS = (
    CONFIG,
    {**CONFIG, "rope_scaling": None, "rope_parameters": _YARN},
    {**CONFIG, **_QWEN, "max_window_layers": 0, "layer_types": ["full_attention"]},
)
GENERATION = {
    "do_sample": True,
    "temperature": 0.7,
    "top_k": 20,
    "top_p": 0.9,
    "repetition_penalty": 1.1,
    "max_length": 64,
    "stop_strings": ["a"],
    "eos_token_id": 2,
}
REQUESTS: tuple[dict[str, Any], ...] = (
    {
        "model": "m",
        "messages": [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": [{"type": "text", "text": "hello"}]},
            {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]},
        ],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
        "chat_template_kwargs": {"enable_thinking": True},
        "logprobs": True,
        "top_logprobs": 2,
        "max_completion_tokens": 5,
        "stream": True,
        "stream_options": {"include_usage": True, "include_steps": False},
        "response_format": {"type": "text"},
    },
    {
        "prompt": "hello",
        "max_tokens": 5,
        "temperature": 0.5,
        "top_k": 4,
        "top_p": 0.9,
        "min_p": 0.1,
        "repetition_penalty": 1.2,
        "presence_penalty": 0.1,
        "frequency_penalty": -0.1,
        "logit_bias": {"3": 1.5, "4": -100},
        "min_new_tokens": 1,
        "seed": 7,
        "stop_token_ids": [2],
        "stop": ["a", "b"],
        "logprobs": 1,
        "n": 1,
        "user": "someone",
        "timeout": 3.5,
        "verification": "coupled",
    },
    {"prompt": [[1, 2, 3]], "ignore_eos": True, "include_stop_str": False, "speculative": "none"},
)
CHAT_TEMPLATE = "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"


@cache
def _folder() -> Path:
    """Small files that are written thousands of times: in memory where that can be had."""
    memory = Path("/dev/shm")
    return Path(tempfile.mkdtemp(prefix="ptd-fuzz-", dir=memory if memory.is_dir() else None))


@cache
def _weights() -> dict[str, torch.Tensor]:
    shapes = expected_shapes(ModelConfig.from_hf(CONFIG))
    return {name: torch.full(shape, 0.125) for name, shape in shapes.items()}


@cache
def _model_directory(name: str) -> Path:
    """A directory that loads; a target then replaces one of its files."""
    path = _folder() / name
    path.mkdir()
    (path / "config.json").write_bytes(to_json(CONFIG))
    save_file(_weights(), path / "model.safetensors")
    return path


def _content(data: bytes, bases: Sequence[Any]) -> bytes:
    """The file or body that an input stands for."""
    if not data or data[0] % 2 == 0:
        return data[1:]
    choices = Choices(data[1:])
    base = choices.one_of(bases)
    names = sorted({key for each in bases for key in each}) if isinstance(base, dict) else [""]
    return to_json(mutated(base, choices, names))


def _read_all(path: Path) -> None:
    checkpoint = open_checkpoint(path)
    assert isinstance(checkpoint.names(), list)
    for name in checkpoint.names():
        tensor = checkpoint.tensor(name)
        assert tensor.numel() * tensor.element_size() < 1 << 24
        assert tuple(tensor.shape) == checkpoint.shape(name)  # type: ignore[attr-defined]
        if tensor.dim():
            part = checkpoint.part(name, 0, 0, 1)  # type: ignore[attr-defined]
            assert part.shape[1:] == tensor.shape[1:]
    str(checkpoint.dtype_name)


def safetensors(data: bytes) -> None:
    """A safetensors file: header, offsets, and every tensor."""
    path = _model_directory("safetensors")
    if data and data[0] % 2:
        choices = Choices(data[1:])
        header = {
            name: {"dtype": "F32", "shape": [2, 4], "data_offsets": [32 * i, 32 * i + 32]}
            for i, name in enumerate(("a", "b", "c"))
        }
        names = ["__metadata__", "a", "dtype", "shape", "data_offsets", ""]
        text = to_json(mutated(header, choices, names))
        length = len(text) + choices.one_of([0, 0, 0, 1, -1, 96, 2**40, 2**63])
        data = b"\0" + length.to_bytes(8, "little") + text + bytes(choices.one_of([96, 96, 0, 40]))
    (path / "model.safetensors").write_bytes(data[1:])
    try:
        _read_all(path)
    except PTDError:
        return


def index(data: bytes) -> None:
    """model.safetensors.index.json beside two shards."""
    path = _model_directory("index")
    names = list(_weights())
    half = len(names) // 2
    shards = {"model-1.safetensors": names[:half], "model-2.safetensors": names[half:]}
    if not (path / "model-1.safetensors").exists():
        for file, held in shards.items():
            save_file({name: _weights()[name] for name in held}, path / file)
        (path / "model.safetensors").unlink()
    base = {
        "metadata": {"total_size": 1},
        "weight_map": {name: file for file, held in shards.items() for name in held},
    }
    (path / "model.safetensors.index.json").write_bytes(_content(data, [base]))
    try:
        _read_all(path)
    except PTDError:
        return


def config(data: bytes) -> None:
    """config.json: all the way to a model."""
    path = _model_directory("config")
    (path / "config.json").write_bytes(_content(data, CONFIGS))
    try:
        load_model(path, kernels="torch", max_seq_len=16)
    except PTDError:
        return


def generation_config(data: bytes) -> None:
    """generation_config.json."""
    path = _model_directory("generation_config")
    (path / "generation_config.json").write_bytes(_content(data, [GENERATION]))
    try:
        defaults = GenerationDefaults.from_hf(open_checkpoint(path).generation_config)
        defaults.taken({})
    except PTDError:
        return


def gguf(data: bytes) -> None:
    """A GGUF file: header, every tensor, the model's configuration, the tokenizer."""
    path = _folder() / "m.gguf"
    odd = bool(data) and data[0] % 2 == 1
    path.write_bytes(gguf_documents.mutated(Choices(data[1:])) if odd else data[1:])
    for read in (_gguf_model, _gguf_tokenizer):
        try:
            read(path)
        except PTDError:
            continue


def _gguf_model(path: Path) -> None:
    checkpoint = GGUFCheckpoint(path)
    for name in checkpoint.names():
        assert checkpoint.tensor(name).numel() < 1 << 22
    load_model(checkpoint, kernels="torch", max_seq_len=16)


def _gguf_tokenizer(path: Path) -> None:
    tokenizer = load_tokenizer(path)
    ids = tokenizer.encode("a bc\n")
    assert all(0 <= token < tokenizer.vocab_size for token in ids)
    tokenizer.decode(ids)
    if tokenizer.has_chat_template:
        tokenizer.render_chat([{"role": "user", "content": "a"}])


@cache
def _tokenizer_files() -> dict[str, Any]:
    pieces = sorted(pre_tokenizers.ByteLevel.alphabet())[:40]
    backend = Backend(models.BPE(vocab={p: i for i, p in enumerate(pieces)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<s>", "</s>"])
    make: Any = PreTrainedTokenizerFast
    made = make(tokenizer_object=backend, bos_token="<s>", eos_token="</s>")
    made.chat_template = CHAT_TEMPLATE
    folder = _folder() / "tokenizer-source"
    made.save_pretrained(folder)
    files = {path.name: path.read_text() for path in folder.iterdir()}
    return {
        name: json.loads(text) if name.endswith(".json") else text for name, text in files.items()
    }


def tokenizer(data: bytes) -> None:
    """The files of a tokenizer, as one JSON object of file name and content."""
    path = _folder() / "tokenizer"
    path.mkdir(exist_ok=True)
    base = _tokenizer_files()
    try:
        files = json.loads(_content(data, [base]))
    except (ValueError, RecursionError):
        return
    for name in base:
        (path / name).unlink(missing_ok=True)
        content = files.get(name) if isinstance(files, dict) else files
        if content is not None:
            raw = content.encode("utf-8", "replace") if isinstance(content, str) else None
            (path / name).write_bytes(to_json(content) if raw is None else raw)
    try:
        made = load_tokenizer(path)
        made.decode(made.encode("+,-"))
        if made.has_chat_template:
            made.render_chat([{"role": "user", "content": "a"}])
    except PTDError:
        return


def request(data: bytes) -> None:
    """The body of a request, for both endpoints, up to where the model would be asked."""
    body = _content(data, REQUESTS)
    for kind in (ChatRequest, CompletionRequest):
        try:
            _prepare(parse(body, kind))
        except PTDError as error:
            encode(ApiError.of(error).body).decode()
        except ApiError as error:
            if not 400 <= error.status < 500:
                raise AssertionError(f"the status of a client's mistake: {error.status}") from error
            encode(error.body).decode()


def _prepare(asked: ChatRequest | CompletionRequest) -> None:
    asked.sampling(16)
    if isinstance(asked, CompletionRequest):
        asked.one_prompt()
        return
    asked.offered_tools()
    check_messages(asked.conversation(), lambda name: name == "thoughts")


TARGETS: dict[str, Callable[[bytes], None]] = {
    function.__name__: function
    for function in (
        *(safetensors, index, config, generation_config, gguf),
        *(tokenizer, request),
    )
}
