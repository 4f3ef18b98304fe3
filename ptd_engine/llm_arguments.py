"""What the calls of an LLM accept: the checks that need no model, and their errors."""

from __future__ import annotations

import difflib
import operator
from collections.abc import Mapping, Sequence
from dataclasses import fields

import torch

from ptd_engine.config import SamplingParams
from ptd_engine.errors import ConfigError, PromptError, UnavailableError, shown
from ptd_engine.model.config import MAX_CONTEXT


def resolve_device(device: str) -> torch.device:
    """The torch device of a name.

    Raises:
        ConfigError: not a device name.
        UnavailableError: a GPU was asked for and torch sees none.
    """
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ConfigError.for_field(
            "device", device, "'auto', 'cpu', 'cuda' or 'cuda:N'"
        ) from error
    if found.type not in ("cpu", "cuda"):
        raise ConfigError.for_field("device", device, "'auto', 'cpu', 'cuda' or 'cuda:N'")
    if found.type == "cuda" and not torch.cuda.is_available():
        raise UnavailableError.for_field(
            "device",
            device,
            "'cpu' on this machine",
            "torch sees no GPU: install a CUDA build of torch and check nvidia-smi.",
        )
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        raise UnavailableError.for_field(
            "device", device, f"cuda:0 to cuda:{torch.cuda.device_count() - 1}"
        )
    return found


def no_prompt(prompt: object) -> PromptError:
    """The error for what is neither a text nor a list of token ids."""
    hint = "Decode bytes to text; take .tolist() of an array."
    first = prompt[0] if isinstance(prompt, Sequence) and prompt else None
    if isinstance(prompt, Mapping) or isinstance(first, Mapping):
        hint = "Messages go to llm.chat(messages), or llm.stream_chat(messages)."
    elif isinstance(first, str | Sequence):
        hint = "One prompt a request: call it for each."
    return PromptError.for_field("prompt", prompt, "a string or a list of token ids", hint)


def refuse_unknown(call: str, unknown: Mapping[str, object], loading: Sequence[str]) -> None:
    """Raise ConfigError for arguments that a call does not have, saying where they belong.

    Args:
        loading: names that `LLM.from_pretrained` has.
    """
    sampling = [field.name for field in fields(SamplingParams)]
    for name, value in unknown.items():
        message = f"{call} has no argument {name} (={shown(value)})."
        near = difflib.get_close_matches(name, sampling, 1)
        if call == "LLM.from_pretrained":
            close = difflib.get_close_matches(name, loading, 1)
            hint = f"It has {', '.join(loading)}."
            if close:
                hint = f"Did you mean {close[0]}?"
            elif name in sampling:
                hint = f"It belongs to a request: generate(prompt, SamplingParams({name}=...))."
        elif isinstance(value, SamplingParams):
            hint = f"It is the second one, params: {call}(..., params)."
        elif name in loading:
            hint = f"It belongs to LLM.from_pretrained(model, {name}=...)."
        elif name == "streamer":
            hint = "Its chunks are the stream; generate and chat take a streamer."
        elif near:
            hint = (
                f"How to decode goes into one object: {call}(..., SamplingParams({near[0]}=...))."
            )
        else:
            hint = f"How to decode goes into SamplingParams, which has {', '.join(sampling)}."
        raise ConfigError(f"{message} {hint}")


def checked_length(value: object) -> int:
    """A context's length as an int; raise ConfigError for what cannot be one."""
    ok = hasattr(value, "__index__") and not isinstance(value, bool)  # numpy's integers too
    if not ok or not 2 <= operator.index(value) <= MAX_CONTEXT:  # type: ignore[arg-type]
        raise ConfigError.for_field(
            "max_seq_len",
            value,
            f"an integer from 2 (one prompt token and one output token) to {MAX_CONTEXT}",
        )
    return operator.index(value)  # type: ignore[arg-type]
