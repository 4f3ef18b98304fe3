"""The sampling defaults that a model's authors ship in generation_config.json, checked.

Reading them is one thing, applying them another: nothing here changes a request. The names are
those of `SamplingParams` where it has the setting.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ptd_engine.checkpoint.fields import flag, integer, number, strings
from ptd_engine.checkpoint.json_file import read_json
from ptd_engine.errors import CheckpointError

_FILE = "generation_config.json"
# Settings of transformers (the last three: of other engines) that change which token is chosen and
# that have no place below, with the value under which they do nothing; null does nothing anywhere.
_OTHERS: Mapping[str, object] = {
    "num_beams": 1,
    "num_beam_groups": 1,
    "num_return_sequences": 1,
    "penalty_alpha": 0,
    "dola_layers": None,
    "encoder_repetition_penalty": 1,
    "no_repeat_ngram_size": 0,
    "encoder_no_repeat_ngram_size": 0,
    "bad_words_ids": [],
    "force_words_ids": [],
    "sequence_bias": {},
    "suppress_tokens": [],
    "begin_suppress_tokens": [],
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
    "forced_decoder_ids": [],
    "exponential_decay_length_penalty": None,
    "min_length": 0,
    "min_new_tokens": 0,
    "guidance_scale": 1,
    "watermarking_config": None,
    "token_healing": False,
    "max_time": None,
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "logit_bias": {},
}
_OTHERS_OF_SAMPLING: Mapping[str, object] = {
    "typical_p": 1,
    "epsilon_cutoff": 0,
    "eta_cutoff": 0,
    "top_h": None,
}


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """What the file says; None or empty where it is silent.

    Attributes:
        do_sample: whether the authors mean to sample. Absent means no, as in transformers, whatever
            temperature and filters stand beside it.
        temperature: >= 0; with `do_sample` and without a temperature it is 1.
        top_k: 0 is off. transformers would take 50 where the file is silent; here silence is off,
            since the file does not say it.
        top_p: above 0, up to 1.
        min_p: 0 to 1.
        repetition_penalty: above 0; 1 is off. Also in force without sampling.
        max_new_tokens: most tokens to generate.
        max_length: longest prompt and output together.
        stop: the file's `stop_strings`.
        unsupported: other settings of the file that would change the output, by name.
    """

    do_sample: bool = False
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    max_new_tokens: int | None = None
    max_length: int | None = None
    stop: tuple[str, ...] = ()
    unsupported: tuple[str, ...] = ()

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> GenerationDefaults:
        """Read the content of generation_config.json (`Checkpoint.generation_config`).

        Raises:
            CheckpointError: a value of a wrong type or out of range; it names the file and the key.
        """
        do_sample = flag(*_named(config, "do_sample"))
        others = {**_OTHERS, **_OTHERS_OF_SAMPLING} if do_sample else _OTHERS
        return cls(
            do_sample=do_sample,
            temperature=_number(config, "temperature", zero=True),
            top_k=_integer(config, "top_k", 0),
            top_p=_fraction(config, "top_p", zero=False),
            min_p=_fraction(config, "min_p", zero=True),
            repetition_penalty=_number(config, "repetition_penalty"),
            max_new_tokens=_integer(config, "max_new_tokens", 1),
            max_length=_integer(config, "max_length", 1),
            stop=_stop_strings(config),
            unsupported=tuple(
                name
                for name, neutral in others.items()
                if config.get(name) is not None and config[name] != neutral
            ),
        )

    def taken(self, explicit: Mapping[str, Any]) -> dict[str, Any]:
        """What these defaults add to a request, by the attributes' names.

        Args:
            explicit: what the request itself sets; it wins, and a temperature of 0 there is greedy
                decoding without the file's filters.

        Returns:
            temperature, repetition_penalty, max_new_tokens, stop and, where tokens are sampled, the
            filters: each only if the file says it, it is not off, and the request does not set it.
            `max_length` is left out: what it allows depends on the prompt.
        """
        own = 1.0 if self.temperature is None else self.temperature
        found: dict[str, Any] = {
            "temperature": own if self.do_sample else 0.0,
            "repetition_penalty": _unless(self.repetition_penalty, 1.0),
            "max_new_tokens": self.max_new_tokens,
            "stop": self.stop or None,
        }
        if self.do_sample and explicit.get("temperature", own) != 0:
            found |= {
                "top_k": _unless(self.top_k, 0),
                "top_p": _unless(self.top_p, 1.0),
                "min_p": _unless(self.min_p, 0.0),
            }
        return {
            name: value
            for name, value in found.items()
            if value is not None and name not in explicit
        }


def load_generation_defaults(path: Path) -> GenerationDefaults:
    """The defaults of a model directory; those of a directory without the file, or of a .gguf file,
    are silent.

    Raises:
        CheckpointError: the file is damaged, or as `GenerationDefaults.from_hf`.
    """
    if not path.is_dir():
        return GenerationDefaults()
    return GenerationDefaults.from_hf(read_json(path / _FILE, required=False))


def _unless(value: float | None, off: float) -> float | None:
    return None if value == off else value


def _named(config: Mapping[str, Any], key: str) -> tuple[dict[str, Any], str]:
    """The value under a name that tells a reader of the error which file holds it."""
    name = f"{_FILE}: {key}"
    return {name: config.get(key)}, name


def _integer(config: Mapping[str, Any], key: str, least: int) -> int | None:
    if config.get(key) is None:
        return None
    return integer(*_named(config, key), least)


def _number(config: Mapping[str, Any], key: str, *, zero: bool = False) -> float | None:
    if config.get(key) is None:
        return None
    return number(*_named(config, key), zero=zero)


def _fraction(config: Mapping[str, Any], key: str, *, zero: bool) -> float | None:
    value = _number(config, key, zero=zero)
    if value is not None and value > 1:
        raise CheckpointError.for_field(
            f"{_FILE}: {key}",
            value,
            "a number of 0 .. 1" if zero else "a number above 0, up to 1",
            "Correct the model's configuration.",
        )
    return value


def _stop_strings(config: Mapping[str, Any]) -> tuple[str, ...]:
    value = config.get("stop_strings")
    listed = {"stop_strings": [value]} if isinstance(value, str) else config
    found = strings(*_named(listed, "stop_strings"))
    if "" in found:
        raise CheckpointError.for_field(
            f"{_FILE}: stop_strings", value, "strings of at least one character"
        )
    return tuple(found)
