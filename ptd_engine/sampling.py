"""`SamplingParams`: how one request is decoded, checked at once."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal

from ptd_engine.checks import MAX_SEED, MAX_TOKEN_ID, check_float, check_int
from ptd_engine.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

    LogitsProcessor = Callable[[Sequence[int], Tensor], Tensor]

Verification = Literal["coupled", "recursive"]

_MAX_BIAS = 1e6


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one request is decoded. The drafter never changes what these say.

    A field that is left at None (`max_new_tokens`: "auto") is open: a model's
    generation_config.json may fill it (see `LLM.from_pretrained`), else the value in brackets
    holds. So `SamplingParams()` without such a file is greedy decoding of 128 tokens.

    Logits are processed in this order, which is transformers': logit_bias, repetition_penalty,
    presence and frequency penalty, min_new_tokens, logits_processor, temperature, top_k, top_p,
    min_p.

    Attributes:
        max_new_tokens: most tokens to generate; 0 returns at once, None goes on to the context
            limit ["auto": 128].
        temperature: 0 is greedy (ties to the lowest token id) [0].
        top_k: keep exactly the k most likely tokens; 0 is off [0].
        top_p: keep the smallest set of most likely tokens with at least this mass; 1 is off [1].
        min_p: keep tokens at least this fraction as likely as the likeliest; 0 is off [0].
        repetition_penalty: of tokens that the prompt or the output holds, a positive logit is
            divided by it and a negative one multiplied; 1 is off [1].
        presence_penalty: taken off the logit of every token that the output holds; 0 is off.
        frequency_penalty: taken off as often as the output holds the token; 0 is off.
        logit_bias: what is added to the logits of single tokens, by token id; -inf forbids one.
        min_new_tokens: while fewer tokens were generated, those that would end the output (the
            end-of-sequence ids unless ignored, `stop_token_ids`) are forbidden. Stop strings are
            not: their tokens are ordinary ones.
        seed: the random numbers are a function of (seed, absolute position) alone, so speculative
            and plain sampling agree token for token wherever the backend rounds a row alike.
        stop_token_ids: more token ids that end the output (the id itself is kept), besides the
            model's end-of-sequence ids.
        ignore_eos: the model's end-of-sequence ids do not stop; `stop_token_ids` and `stop` still
            do.
        stop: a string, or several, that ends the output where it appears in the text, also across
            tokens. The text is cut in front of the earliest match (the longest of those that begin
            there); the token that completed it stays in the ids. Special tokens have no text: name
            them in `stop_token_ids` [none].
        include_stop_str: cut behind the match instead.
        logprobs: None, or report for every token its log-probability and those of this many
            likeliest tokens: log-softmax of the model's own logits, before anything above is
            applied to them (vLLM's default).
        logits_processor: your own function of (token ids of prompt and output so far, logits [V]
            in float32) that returns the logits to go on with, of the same shape. It is called once
            for every token of the output, in order, and never for a draft that is rejected; so each
            call waits for the device.
        verification: "coupled", or "recursive" (the paper's Algorithm 2: the same law, other random
            numbers; slower, for study).

    Raises:
        ConfigError: an unknown field, a value out of range, or fields that contradict each other.
    """

    max_new_tokens: int | Literal["auto"] | None = "auto"
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] | None = None
    min_new_tokens: int = 0
    seed: int = 0
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    stop: str | Sequence[str] | None = None
    include_stop_str: bool = False
    logprobs: int | None = None
    logits_processor: LogitsProcessor | None = None
    verification: Verification = "coupled"

    def __new__(cls, *args: Any, **settings: Any) -> SamplingParams:
        """Refuse unknown fields as any other mistake: by a ConfigError that names the field."""
        known = [field.name for field in fields(cls)]
        for name, value in settings.items():
            if name not in known:
                close = difflib.get_close_matches(name, known, 1)
                hint = f"Did you mean {close[0]}?" if close else ""
                raise ConfigError.for_field(name, value, f"a field of {', '.join(known)}", hint)
        return object.__new__(cls)

    def __post_init__(self) -> None:
        self._check_numbers()
        self._check_stop_ids()
        self._check_stop_strings()
        self._check_bias()
        for field in ("ignore_eos", "include_stop_str"):
            if not isinstance(getattr(self, field), bool):
                raise ConfigError.for_field(field, getattr(self, field), "True or False")
        if self.verification not in ("coupled", "recursive"):
            raise ConfigError.for_field(
                "verification", self.verification, "'coupled' or 'recursive'"
            )
        if self.logits_processor is not None and not callable(self.logits_processor):
            raise ConfigError.for_field(
                "logits_processor", self.logits_processor, "a function of (token ids, logits)"
            )
        self._check_contradictions()

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """`stop` as a tuple, whichever form it was given in."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def explicit(self) -> dict[str, Any]:
        """The fields that defaults could fill and that are not open, by name."""
        return {name: getattr(self, name) for name in OPEN if getattr(self, name) != OPEN[name]}

    def resolved(self, defaults: Mapping[str, Any] | None = None) -> ResolvedParams:
        """The same with every open field filled: from `defaults`, else with the value in brackets.

        Raises:
            ConfigError: the fields contradict each other now, say a filter without a temperature.
        """
        if isinstance(self, ResolvedParams):
            return self
        own = {field.name: getattr(self, field.name) for field in fields(self)}
        closed = {name: value for name, value in own.items() if name not in OPEN}
        return ResolvedParams(**{**closed, **(defaults or {}), **self.explicit})

    def _check_numbers(self) -> None:
        hint = "None goes on to the context limit."
        if self.max_new_tokens not in (None, "auto"):
            check_int("max_new_tokens", self.max_new_tokens, 0, 2**31 - 1, hint)
        if self.temperature is not None:
            check_float("temperature", self.temperature, 0.0, 1e6, "0 is greedy decoding.")
        if self.top_k is not None:
            check_int("top_k", self.top_k, 0, 2**24, "0 switches it off.")
        if self.top_p is not None:
            _check_above_zero("top_p", self.top_p, 1.0, "1 switches it off.")
        if self.min_p is not None:
            check_float("min_p", self.min_p, 0.0, 1.0, "0 switches it off.")
        if self.repetition_penalty is not None:
            _check_above_zero(
                "repetition_penalty", self.repetition_penalty, 1e6, "1 switches it off."
            )
        for field in ("presence_penalty", "frequency_penalty"):
            check_float(field, getattr(self, field), -2.0, 2.0, "0 switches it off.")
        check_int("min_new_tokens", self.min_new_tokens, 0, 2**31 - 1)
        check_int("seed", self.seed, 0, MAX_SEED)
        if self.logprobs is not None:
            check_int("logprobs", self.logprobs, 0, MAX_TOKEN_ID, "None reports nothing.")

    def _check_stop_ids(self) -> None:
        ids = self.stop_token_ids
        ok = isinstance(ids, Sequence) and not isinstance(ids, str | bytes)
        if not ok or not all(isinstance(i, int) and not isinstance(i, bool) for i in ids):
            raise ConfigError.for_field(
                "stop_token_ids", ids, "a list of token ids", "Stop strings are not token ids."
            )
        for i in ids:
            check_int("stop_token_ids", i, 0, MAX_TOKEN_ID)

    def _check_stop_strings(self) -> None:
        if self.stop is None:
            return
        hint = "Token ids go into stop_token_ids."
        ok = isinstance(self.stop, Sequence) and not isinstance(self.stop, bytes | bytearray)
        if not ok:
            raise ConfigError.for_field("stop", self.stop, "a string or a list of strings", hint)
        for index, item in enumerate(self.stop_strings):
            field = "stop" if isinstance(self.stop, str) else f"stop[{index}]"
            if not isinstance(item, str):
                raise ConfigError.for_field(field, item, "a string", hint)
            if not item:
                raise ConfigError.for_field(
                    field, item, "at least one character", "Leave it out to stop nowhere."
                )

    def _check_bias(self) -> None:
        if self.logit_bias is None:
            return
        if not isinstance(self.logit_bias, Mapping):
            raise ConfigError.for_field(
                "logit_bias", self.logit_bias, "a dict from token ids to numbers"
            )
        for token, bias in self.logit_bias.items():
            check_int("logit_bias", token, 0, MAX_TOKEN_ID, "Its keys are token ids.")
            if not (isinstance(bias, float) and bias == -math.inf):
                check_float(f"logit_bias[{token}]", bias, -_MAX_BIAS, _MAX_BIAS, "-inf forbids it.")

    def _check_contradictions(self) -> None:
        if isinstance(self.max_new_tokens, int) and self.min_new_tokens > self.max_new_tokens:
            raise ConfigError.for_field(
                "min_new_tokens",
                self.min_new_tokens,
                f"at most max_new_tokens={self.max_new_tokens}",
                "Set max_new_tokens as well: 128 where nothing else sets it.",
            )
        if self.verification == "recursive":
            for field in ("logprobs", "logits_processor"):
                if getattr(self, field) is not None:
                    raise ConfigError.for_field(
                        field, getattr(self, field), "None while verification is 'recursive'"
                    )
        if self.temperature != 0:
            return
        for field, most, allowed in (
            ("top_p", 1.0, "1"),
            ("min_p", 0.0, "0"),
            ("top_k", 1, "0 or 1"),
        ):
            value = getattr(self, field)
            if value is not None and (value < 1 if field == "top_p" else value > most):
                raise ConfigError.for_field(
                    field,
                    value,
                    f"{allowed} while temperature is 0",
                    "Greedy decoding takes the likeliest token: set temperature > 0 to sample.",
                )


@dataclass(frozen=True, slots=True)
class ResolvedParams(SamplingParams):
    """`SamplingParams` in which no field is open."""

    max_new_tokens: int | None = 128
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    stop: str | Sequence[str] = ()


# What an open field holds.
OPEN: Mapping[str, str | None] = {
    "max_new_tokens": "auto",
    "temperature": None,
    "top_k": None,
    "top_p": None,
    "min_p": None,
    "repetition_penalty": None,
    "stop": None,
}


def _check_above_zero(field: str, value: object, high: float, hint: str) -> None:
    check_float(field, value, 0.0, high, hint)
    if value == 0.0:
        raise ConfigError.for_field(field, value, f"a number above 0, up to {high:g}", hint)
