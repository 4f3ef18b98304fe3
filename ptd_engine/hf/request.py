"""From what transformers' generate has prepared to a request of ours."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.generation import logits_process as processing
from transformers.generation import stopping_criteria as stopping

from ptd_engine.config import SamplingParams
from ptd_engine.errors import ConfigError

# Of transformers' processors, those that SamplingParams can express, in the order of both.
_WARPERS = {
    processing.TemperatureLogitsWarper: "temperature",
    processing.TopKLogitsWarper: "top_k",
    processing.TopPLogitsWarper: "top_p",
    processing.MinPLogitsWarper: "min_p",
}
_NOT_SUPPORTED: dict[str, tuple[object, ...]] = {
    # name -> values that change nothing
    "num_beams": (None, 1),
    "num_return_sequences": (None, 1),
    "constraints": (None,),
    "force_words_ids": (None,),
    "penalty_alpha": (None, 0, 0.0),
    "dola_layers": (None,),
    "output_scores": (None, False),
    "output_logits": (None, False),
    "output_attentions": (None, False),
    "output_hidden_states": (None, False),
}


def check_supported(
    generation_config: Any, input_ids: Tensor, model_kwargs: dict[str, Any]
) -> None:
    """Refuse what would be ignored.

    Raises:
        ConfigError: naming it.
    """
    for name, harmless in _NOT_SUPPORTED.items():
        value = getattr(generation_config, name, None)
        if value not in harmless:
            allowed = " or ".join(repr(v) for v in harmless)
            raise ConfigError.for_field(name, value, allowed, "ptd_engine has no such decoding.")
    if input_ids.ndim != 2 or input_ids.shape[0] != 1:
        raise ConfigError.for_field(
            "shape of input_ids", tuple(input_ids.shape), "(1, n)", "One request at a time: loop."
        )
    places = torch.arange(input_ids.shape[1], device=input_ids.device)
    checks: dict[str, Callable[[Any], bool]] = {
        "use_cache": lambda value: True,
        "logits_to_keep": lambda value: True,
        "cache_position": lambda value: torch.equal(value, places),
        "attention_mask": lambda value: bool((value == 1).all()),
        "position_ids": lambda value: torch.equal(value.reshape(-1), places),
        "cache": _is_new_cache,
        "past_key_values": _is_new_cache,
    }
    mask = model_kwargs.get("attention_mask")
    if mask is not None and not checks["attention_mask"](mask):
        raise ConfigError.for_field(
            "attention_mask",
            mask.reshape(-1).tolist(),
            "ones: a request alone needs no padding",
            "Pass input_ids[:, attention_mask[0].bool()] and no attention_mask; generate makes one "
            "with zeros where input_ids hold the pad token.",
        )
    for name, value in model_kwargs.items():
        if value is not None and not (name in checks and checks[name](value)):
            raise ConfigError.for_field(
                name, value, "what generate makes of input_ids alone", "Leave it out."
            )


def _is_new_cache(cache: Any) -> bool:
    return not getattr(cache, "_is_user_defined", False) and cache.get_seq_length() == 0


def params_of(
    prompt: Sequence[int],
    processors: Iterable[Any],
    criteria: Iterable[Any],
    *,
    do_sample: bool,
    seed: int,
) -> tuple[SamplingParams, Callable[[int], bool] | None]:
    """Parameters of the request, and its stop check for criteria that are more than an id.

    Processors that are no field of SamplingParams run as its `logits_processor`, in their order
    and once a token: exact, but a host sync each.

    Args:
        prompt: token ids.
        processors, criteria: as prepared by transformers, with the user's own.
        do_sample: else greedy.
        seed: of the sampling.

    Raises:
        ConfigError: a value out of range.
    """
    fields: dict[str, Any] = {"seed": seed, "temperature": 1.0 if do_sample else 0.0}
    limit, eos, others = None, set[int](), list[Any]()
    for criterion in criteria:
        if type(criterion) is stopping.MaxLengthCriteria:
            limit = min(limit or criterion.max_length, criterion.max_length)
        elif type(criterion) is stopping.EosTokenCriteria:
            eos |= set(criterion.eos_token_id.tolist())
        else:
            others.append(criterion)
    fields["max_new_tokens"] = None if limit is None else max(0, limit - len(prompt))
    fields["stop_token_ids"] = sorted(eos)
    head, warpers = _split(list(processors), do_sample)
    fields |= {name: getattr(warper, name) for name, warper in warpers.items()}
    native = _native_fields(head, eos, len(prompt))
    if native is None:
        fields["logits_processor"] = _as_function(head)
    else:
        fields |= native
    if fields["max_new_tokens"] is not None and "min_new_tokens" in fields:
        # Longer than the output may become: its end is forbidden throughout.
        fields["min_new_tokens"] = min(fields["min_new_tokens"], fields["max_new_tokens"])
    return SamplingParams(**fields), _as_check(prompt, others) if others else None


def _split(processors: list[Any], do_sample: bool) -> tuple[list[Any], dict[str, Any]]:
    """The processors, less the warpers at their end that temperature, top_k, ... express."""
    order, found = list(_WARPERS), dict[str, Any]()
    while do_sample and processors and order and type(processors[-1]) in order:
        warper = processors[-1]
        exact = getattr(warper, "min_tokens_to_keep", 1) == 1
        if not exact or getattr(warper, "filter_value", -torch.inf) != -torch.inf:
            break
        order = order[: order.index(type(warper))]
        found[_WARPERS[type(warper)]] = processors.pop()
    return processors, found


def _native_fields(processors: list[Any], eos: set[int], prompt_len: int) -> dict[str, Any] | None:
    """Fields that do what the processors do; None if there are none such."""
    fields: dict[str, Any] = {}
    for processor in processors:
        kind = type(processor)
        if kind is processing.RepetitionPenaltyLogitsProcessor and not fields:
            if getattr(processor, "prompt_ignore_length", None) is not None:
                return None
            fields["repetition_penalty"] = float(processor.penalty)
            continue
        if kind is processing.MinLengthLogitsProcessor:
            least = processor.min_length - prompt_len
        elif kind is processing.MinNewTokensLengthLogitsProcessor:
            least = processor.min_new_tokens
            if processor.prompt_length_to_skip != prompt_len:
                return None
        else:
            return None
        if set(torch.as_tensor(processor.eos_token_id).reshape(-1).tolist()) != eos:
            return None
        fields["min_new_tokens"] = max(fields.get("min_new_tokens", 0), least, 0)
    return fields


def _as_function(processors: list[Any]) -> Callable[[Sequence[int], Tensor], Tensor]:
    def process(token_ids: Sequence[int], logits: Tensor) -> Tensor:
        ids = torch.tensor([list(token_ids)], dtype=torch.int64, device=logits.device)
        scores = logits[None]
        for processor in processors:
            scores = processor(ids, scores)
        return scores[0]

    return process


def _as_check(prompt: Sequence[int], criteria: list[Any]) -> Callable[[int], bool]:
    ids = list(prompt)

    def stops_at(token: int) -> bool:
        ids.append(token)
        text = torch.tensor([ids], dtype=torch.int64)
        verdicts = [criterion(text, None) for criterion in criteria]  # some count their calls
        return any(bool(torch.as_tensor(verdict).all()) for verdict in verdicts)

    return stops_at
