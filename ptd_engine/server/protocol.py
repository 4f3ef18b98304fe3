"""The requests: OpenAI's fields, those of SamplingParams, and nothing else.

Types are strict ("5" is no number) and unknown fields are errors: what a client asks for is done or
refused. null means the same as leaving a field out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from ptd_engine.errors import ConfigError, shown
from ptd_engine.sampling import SamplingParams

MAX_STOPS = 16
DEFAULT_COMPLETION_TOKENS = 16  # OpenAI's
_MAX_TOKENS = 2**31 - 1

Count = Annotated[int, Field(ge=1, le=_MAX_TOKENS)]


Item = TypeVar("Item")
# A body may hold a million items: their first mistake is told, and the rest is not looked at.
List = Annotated[list[Item], Field(fail_fast=True)]


class UnknownFieldError(ValueError):
    """A field of this name is not known."""

    def __init__(self, name: str) -> None:
        super().__init__("unknown field")  # not the name: it may be no text
        self.name = name


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _known_fields(cls, data: object) -> object:
        """Refuse the first unknown field; pydantic would collect all of them."""
        if isinstance(data, dict):
            for name in data:
                if name not in cls.model_fields:
                    raise UnknownFieldError(name)
        return data


class StreamOptions(_Strict):
    """What a stream holds besides the text.

    Attributes:
        include_usage: a last chunk without choices that holds `usage`.
        include_steps: every chunk tells of its step (`step`): tokens, which of them were drafted,
            and the tree. For display.
    """

    include_usage: bool | None = None
    include_steps: bool | None = None


class ResponseFormat(_Strict):
    """Text is the only format."""

    type: Literal["text"]


class GenerationRequest(_Strict):
    """What both endpoints take.

    Attributes:
        max_tokens, max_completion_tokens, max_new_tokens: names of one field.
        speculative: "auto" drafts as the server was told to, "none" decodes plainly. The tokens
            are the same.
        timeout: seconds until the request is given up; the server's own limit holds as well.
        user: goes into the server's log.
    """

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    user: Annotated[str, Field(max_length=256)] | None = None
    speculative: Literal["auto", "none"] | None = None
    timeout: Annotated[float, Field(gt=0, le=1e6)] | None = None

    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    max_new_tokens: Count | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    min_new_tokens: int | None = None
    seed: int | None = None
    stop_token_ids: List[int] | None = None
    ignore_eos: bool | None = None
    stop: str | Annotated[list[str], Field(max_length=MAX_STOPS)] | None = None
    include_stop_str: bool | None = None
    verification: str | None = None

    @field_validator("logit_bias", mode="before")
    @classmethod
    def _biases(cls, value: object) -> object:
        """Refuse the first bad bias; see `List`."""
        if isinstance(value, dict):
            for token, bias in value.items():
                if isinstance(bias, bool) or not isinstance(bias, int | float):
                    raise ValueError(f"the bias of {shown(token)} is {shown(bias)}: no number")
        return value

    @field_validator("stop")
    @classmethod
    def _whole_text(cls, value: str | list[str] | None) -> str | list[str] | None:
        for text in [value] if isinstance(value, str) else value or ():
            if not text.isascii() and any("\ud800" <= char <= "\udfff" for char in text):
                raise ValueError("a lone surrogate is no text, so no answer would hold it")
        return value

    @field_validator("n")
    @classmethod
    def _one_choice(cls, value: int | None) -> int | None:
        if value not in (None, 1):
            raise ValueError("only 1 is allowed: one answer a request; send several requests")
        return value

    @property
    def streams(self) -> bool:
        """Whether the answer comes in parts."""
        return bool(self.stream)

    @property
    def drafts(self) -> bool:
        """Whether the server's drafter is used."""
        return self.speculative != "none"

    def logprobs_wanted(self) -> int | None:
        """See `SamplingParams.logprobs`."""
        raise NotImplementedError

    def budget(self, default: int | None) -> int | None:
        """Most tokens of the answer; None: to the context limit.

        Raises:
            ConfigError: two of its names, with different values.
        """
        names = ("max_tokens", "max_completion_tokens", "max_new_tokens")
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        if len(set(given.values())) > 1:
            raise ConfigError(f"{given} contradict each other: give one of them.")
        return next(iter(given.values()), default)

    def sampling(self, default_max_tokens: int | None) -> SamplingParams:
        """How the request is decoded. Without a seed another one is drawn for every request.

        Raises:
            ConfigError: a value out of range, or fields that contradict each other.
        """
        same = (
            *("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty"),
            *("frequency_penalty", "min_new_tokens", "stop_token_ids", "ignore_eos", "stop"),
            *("include_stop_str", "verification"),
        )
        given = {name: value for name in same if (value := getattr(self, name)) is not None}
        if self.logit_bias is not None:
            given["logit_bias"] = {_token_id(key): bias for key, bias in self.logit_bias.items()}
        return SamplingParams(
            max_new_tokens=self.budget(default_max_tokens),
            seed=self.seed,
            logprobs=self.logprobs_wanted(),
            **given,
        )


class ChatRequest(GenerationRequest):
    """POST /v1/chat/completions.

    Attributes:
        messages: as `LLM.chat` takes them; a content may be a list of parts of type "text".
        chat_template_kwargs: further variables of the model's chat template.
        tools: go to the chat template. What the model answers is handed on as text.
    """

    messages: List[dict[str, Any]]
    tools: List[dict[str, Any]] | None = None
    tool_choice: Literal["auto", "none"] | None = None
    response_format: ResponseFormat | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0)] | None = None

    def logprobs_wanted(self) -> int | None:
        """See `SamplingParams.logprobs`."""
        if not self.logprobs:
            if self.top_logprobs:
                raise ConfigError.for_field(
                    "top_logprobs", self.top_logprobs, "0 without logprobs", "Set logprobs: true."
                )
            return None
        return self.top_logprobs or 0

    def conversation(self) -> list[dict[str, Any]]:
        """The messages, with parts of text joined."""
        return [
            {**message, "content": _joined(message["content"])} if "content" in message else message
            for message in self.messages
        ]

    def offered_tools(self) -> list[dict[str, Any]] | None:
        """What the template is told about."""
        return None if self.tool_choice == "none" else self.tools


class CompletionRequest(GenerationRequest):
    """POST /v1/completions.

    Attributes:
        prompt: a text or token ids; a list with one such prompt is that prompt.
        logprobs: report each token's log-probability and those of this many likeliest ones.
    """

    prompt: str | List[int] | List[str] | List[List[int]]
    logprobs: Annotated[int, Field(ge=0)] | None = None

    @field_validator("prompt", mode="before")
    @classmethod
    def _single(cls, value: object) -> object:
        if isinstance(value, list) and len(value) > 1 and isinstance(value[0], str | list):
            raise ValueError("one prompt is allowed: send a request for each of several")
        return value

    def logprobs_wanted(self) -> int | None:
        """See `SamplingParams.logprobs`."""
        return self.logprobs

    def budget(self, default: int | None) -> int | None:
        """See `GenerationRequest.budget`."""
        return super().budget(DEFAULT_COMPLETION_TOKENS if default is None else default)

    def one_prompt(self) -> str | list[int]:
        """The prompt.

        Raises:
            ConfigError: there is none.
        """
        prompt = self.prompt
        if isinstance(prompt, str) or (prompt and isinstance(prompt[0], int)):
            return prompt
        if len(prompt) != 1:
            raise ConfigError.for_field("prompt", prompt, "one prompt")
        return prompt[0]  # type: ignore[return-value]


def _token_id(key: str) -> int:
    if not (key.isascii() and key.isdigit() and len(key) <= 10):
        raise ConfigError.for_field("logit_bias", key, "token ids as keys")
    return int(key)


def _joined(content: object) -> object:
    """The text of a list of text parts; anything else as it is (the tokenizer checks it)."""
    if not isinstance(content, Sequence) or isinstance(content, str):
        return content
    texts = []
    for part in content:
        ok = isinstance(part, dict) and set(part) == {"type", "text"} and part["type"] == "text"
        if not ok or not isinstance(part["text"], str):
            return content
        texts.append(part["text"])
    return "".join(texts)
