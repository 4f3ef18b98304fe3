"""`SamplingParams`: how one request is decoded, checked at once."""

from __future__ import annotations

import difflib
import inspect
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal

from ptd_engine.checks import MAX_SEED, MAX_TOKEN_ID, SEED_HINT, as_int, check_float, check_int
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
        max_new_tokens: most tokens to generate. 0 returns at once (of a prompt that could be
            continued: one that fills the context is refused all the same). None, or more than the
            context has room for, goes on to the context limit: "length" again ["auto": 128].
        temperature: 0 is greedy (ties to the lowest token id), up to 1e6 [0].
        top_k: keep exactly the k most likely tokens; 0 is off [0].
        top_p: keep the smallest set of most likely tokens with at least this mass, above 0; 1 is
            off [1].
        min_p: keep tokens at least this fraction as likely as the likeliest, up to 1; 0 is off [0].
        repetition_penalty: of tokens that the prompt or the output holds, a positive logit is
            divided by it and a negative one multiplied; above 0, 1 is off [1].
        presence_penalty: taken off the logit of every token that the output holds; -2 to 2, 0 is
            off.
        frequency_penalty: taken off as often as the output holds the token; -2 to 2, 0 is off.
        logit_bias: what is added to the logits of single tokens, by token id; -1e6 to 1e6, or -inf,
            which forbids one.
        min_new_tokens: while fewer tokens were generated, those that would end the output (the
            end-of-sequence ids unless ignored, `stop_token_ids`) are forbidden. Stop strings are
            not: their tokens are ordinary ones. At most `max_new_tokens`, and what the context has
            room for behind the prompt.
        seed: the random numbers are a function of (seed, absolute position) alone, so speculative
            and plain sampling agree token for token wherever the backend rounds a row alike. 0 to
            2^64 - 1. None draws another seed for every request that samples, from Python's `random`
            (`resolved` does it; what it returns holds the seed).
        stop_token_ids: more token ids that end the output (the id itself is kept), besides the
            model's end-of-sequence ids.
        ignore_eos: the model's end-of-sequence ids do not stop; `stop_token_ids` and `stop` still
            do.
        stop: a string, or several, that ends the output where it appears in the text, also across
            tokens. The text is cut in front of the earliest match (the longest of those that begin
            there); the token that completed it stays in the ids. Special tokens have no text; a
            string that is one's spelling, whole, stands for its id in `stop_token_ids` too [none].
        include_stop_str: cut behind the match instead.
        logprobs: None, or report for every token its log-probability and those of this many
            likeliest tokens (0: its own alone; at most the vocabulary): log-softmax of the model's
            own logits, before anything above is applied to them (vLLM's default).
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
    seed: int | None = 0
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
        if self.logits_processor is not None and not _takes_two(self.logits_processor):
            raise ConfigError.for_field(
                "logits_processor",
                self.logits_processor,
                "a function of (token ids, logits), called with these two",
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
        """The same with every open field filled: from `defaults`, else with the value in brackets,
        and a seed drawn where it is None (greedy decoding draws nothing).

        Raises:
            ConfigError: the fields contradict each other now, say a filter without a temperature.
        """
        if isinstance(self, ResolvedParams):
            return self
        own = {field.name: getattr(self, field.name) for field in fields(self)}
        closed = {name: value for name, value in own.items() if name not in OPEN}
        filled = {**closed, **(defaults or {}), **self.explicit}
        if filled["seed"] is None:
            greedy = filled.get("temperature", 0.0) == 0.0
            filled["seed"] = 0 if greedy else random.getrandbits(63)
        return ResolvedParams(**filled)

    def _set(self, field: str, value: object) -> None:
        """Keep a plain value in place of one of another type, say numpy's."""
        object.__setattr__(self, field, value)

    def _check_numbers(self) -> None:
        budget = self.max_new_tokens
        if budget is not None and not (isinstance(budget, str) and budget == "auto"):
            self._check_int("max_new_tokens", 2**31 - 1, "None goes on to the context limit.")
        if self.temperature is not None:
            self._check_float("temperature", 0.0, 1e6, "0 is greedy decoding.")
        if self.top_k is not None:
            self._check_int("top_k", 2**24, "0 switches it off.")
        if self.min_p is not None:
            self._check_float("min_p", 0.0, 1.0, "0 switches it off.")
        for field, high in (("top_p", 1.0), ("repetition_penalty", 1e6)):
            if getattr(self, field) is not None:
                self._check_float(field, 0.0, high, "1 switches it off.", above=True)
        for field in ("presence_penalty", "frequency_penalty"):
            self._check_float(field, -2.0, 2.0, "0 switches it off.")
        self._check_int("min_new_tokens", 2**31 - 1)
        if self.seed is not None:
            self._check_int("seed", MAX_SEED, SEED_HINT)
        if self.logprobs is not None:
            hint = "0 reports each token's own alone, None nothing; at most the vocabulary's size."
            self._check_int("logprobs", MAX_TOKEN_ID, hint)

    def _check_int(self, field: str, high: int, hint: str = "") -> None:
        self._set(field, check_int(field, getattr(self, field), 0, high, hint))

    def _check_float(
        self, field: str, low: float, high: float, hint: str, *, above: bool = False
    ) -> None:
        """Check a number from `low` to `high`, or, if `above`, above `low`."""
        value = check_float(field, getattr(self, field), low, high, hint)
        if above and value == low:
            allowed = f"a number above {low:g}, up to {high:g}"
            raise ConfigError.for_field(field, value, allowed, hint)
        self._set(field, value)

    def _check_stop_ids(self) -> None:
        ids = self.stop_token_ids
        ok = isinstance(ids, Sequence) and not isinstance(ids, str | bytes)
        if not ok or any(as_int(i) is None for i in ids):
            hint = "Stop strings go into stop; take .tolist() of an array."
            raise ConfigError.for_field("stop_token_ids", ids, "a list of token ids", hint)
        self._set(
            "stop_token_ids", tuple(check_int("stop_token_ids", i, 0, MAX_TOKEN_ID) for i in ids)
        )

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
        plain: dict[int, float] = {}
        for key, bias in self.logit_bias.items():
            token = check_int("logit_bias", key, 0, MAX_TOKEN_ID, "Its keys are token ids.")
            given: object = bias
            if isinstance(given, Real) and given == -math.inf:
                plain[token] = -math.inf
            else:
                field = f"logit_bias[{token}]"
                plain[token] = check_float(field, bias, -_MAX_BIAS, _MAX_BIAS, "-inf forbids it.")
        self._set("logit_bias", plain)

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
    seed: int = 0
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


def _takes_two(function: object) -> bool:
    """Whether it can be called with two arguments, as far as its signature tells."""
    if not callable(function):
        return False
    try:
        inspect.signature(function).bind(None, None)
    except TypeError:
        return False
    except ValueError:  # a built-in without a signature
        return True
    return True
