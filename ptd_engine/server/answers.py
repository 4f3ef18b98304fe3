"""Objects of the OpenAI API, made of what the engine returns.

What goes beyond that API has names of its own, which clients pass over: `spec_decode` (how
drafting did, in vLLM's terms), `timings`, and `step` where a stream was asked for it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ptd_engine.metrics import GenerationStats
from ptd_engine.outputs import GenerationOutput, TokenLogprobs
from ptd_engine.server.jobs import Job
from ptd_engine.server.prometheus import accepted_per_position
from ptd_engine.text import Tokenizer

Endpoint = Literal["chat", "completions"]

_LEAST_LOGPROB = -9999.0  # what OpenAI's clients take for "never"; JSON has no infinity


def usage(output: GenerationOutput) -> dict[str, Any]:
    """Token counts."""
    return {
        "prompt_tokens": output.usage.prompt_tokens,
        "completion_tokens": output.usage.completion_tokens,
        "total_tokens": output.usage.total_tokens,
        "prompt_tokens_details": {"cached_tokens": output.stats.reused_tokens},
    }


def spec_decode(stats: GenerationStats, *, drafted: bool) -> dict[str, Any]:
    """How drafting did on a request. The num_ names are vLLM's: a draft is a step that had
    candidates, position k counts those that accepted more than k.
    """
    return {
        "speculative": "auto" if drafted else "none",
        "num_drafts": stats.hit_steps,
        "num_draft_tokens": stats.candidate_nodes,
        "num_accepted_tokens": stats.accepted,
        "num_accepted_tokens_per_pos": accepted_per_position(stats),
        "draft_acceptance_rate": stats.draft_acceptance_rate,
        "mean_acceptance_length": stats.mean_acceptance_length,
        "num_steps": stats.steps,
        "decoding_efficiency": stats.decoding_efficiency,
    }


def timings(job: Job) -> dict[str, float | None]:
    """Seconds, from the request's arrival on."""
    times = job.times
    return {
        "queue_s": times.since_arrival(times.started),
        "time_to_first_token_s": times.since_arrival(times.first_token),
        "time_per_output_token_s": job.tpot_s,
        "total_s": times.since_arrival(times.last_token),
    }


@dataclass
class Answer:
    """Renders the answer to one request.

    Attributes:
        endpoint: decides the objects' form.
        job: the request.
        model: its name.
        tokenizer: spells the tokens of log-probabilities.
        created: seconds since 1970.
    """

    endpoint: Endpoint
    job: Job
    model: str
    tokenizer: Tokenizer
    created: int = field(default_factory=lambda: int(time.time()))
    _characters: int = 0  # of the tokens whose log-probabilities were rendered

    def whole(self, output: GenerationOutput) -> dict[str, Any]:
        """The answer in one object."""
        text = output.text
        content: dict[str, Any] = {"text": text}
        if self.endpoint == "chat":
            content = {"message": {"role": "assistant", "content": text, "refusal": None}}
        choice = {
            "index": 0,
            **content,
            "logprobs": self._logprobs(output.logprobs),
            "finish_reason": output.finish_reason,
        }
        kind = "chat.completion" if self.endpoint == "chat" else "text_completion"
        return {
            **self._head(kind),
            "choices": [choice],
            "usage": usage(output),
            **self._measures(output),
        }

    def role(self) -> dict[str, Any]:
        """The first object of a chat's stream."""
        return self._part({"delta": {"role": "assistant", "content": ""}}, None, None)

    def part(self, text: str, logprobs: Sequence[TokenLogprobs] | None) -> dict[str, Any]:
        """An object of a stream that holds text."""
        content = {"delta": {"content": text}} if self.endpoint == "chat" else {"text": text}
        return self._part(content, self._logprobs(logprobs), None)

    def end(self, output: GenerationOutput) -> dict[str, Any]:
        """The last object of a stream that has a choice."""
        content: dict[str, Any] = {"delta": {}} if self.endpoint == "chat" else {"text": ""}
        return {**self._part(content, None, output.finish_reason), **self._measures(output)}

    def usage(self, output: GenerationOutput) -> dict[str, Any]:
        """The object that follows where a stream was asked for usage."""
        return {**self._head(self._part_kind), "choices": [], "usage": usage(output)}

    @property
    def _part_kind(self) -> str:
        return "chat.completion.chunk" if self.endpoint == "chat" else "text_completion"

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.job.id, "object": kind, "created": self.created, "model": self.model}

    def _part(
        self, content: dict[str, Any], logprobs: dict[str, Any] | None, finish: str | None
    ) -> dict[str, Any]:
        choice = {"index": 0, **content, "logprobs": logprobs, "finish_reason": finish}
        return {**self._head(self._part_kind), "choices": [choice]}

    def _measures(self, output: GenerationOutput) -> dict[str, Any]:
        return {
            "spec_decode": spec_decode(output.stats, drafted=self.job.speculative),
            "timings": timings(self.job),
            "seed": self.job.params.seed,
        }

    def _logprobs(self, entries: Sequence[TokenLogprobs] | None) -> dict[str, Any] | None:
        if entries is None:
            return None
        if self.endpoint == "chat":
            return {
                "content": [
                    {
                        **self._token(entry.token_id, entry.logprob),
                        "top_logprobs": [self._token(*likely) for likely in entry.top],
                    }
                    for entry in entries
                ]
            }
        spelled = [self._spell(entry.token_id) for entry in entries]
        offsets = []
        for token in spelled:
            offsets.append(self._characters)
            self._characters += len(token)
        return {
            "tokens": spelled,
            "token_logprobs": [_finite(entry.logprob) for entry in entries],
            "top_logprobs": [
                {self._spell(token): _finite(value) for token, value in entry.top}
                for entry in entries
            ],
            "text_offset": offsets,
        }

    def _token(self, token: int, logprob: float) -> dict[str, Any]:
        raw = self.tokenizer.token_bytes(token)
        return {"token": self._spell(token), "logprob": _finite(logprob), "bytes": list(raw)}

    def _spell(self, token: int) -> str:
        """Its text, or for part of a character the bytes' values: each has a name of its own."""
        raw = self.tokenizer.token_bytes(token)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def _finite(logprob: float) -> float:
    return max(logprob, _LEAST_LOGPROB)
