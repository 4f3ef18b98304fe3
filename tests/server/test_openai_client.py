"""The official client, unchanged: whole answers, streams, errors."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest
from openai import OpenAI

from ptd_engine import LLM, SamplingParams

from .conftest import PROMPT, Running, make_toy, serving

MESSAGES = [{"role": "user", "content": "Hi"}]


@pytest.fixture
def client(server: Running) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0) as found:
        yield found


def test_chat(client: OpenAI, tiny_llm: LLM) -> None:
    expected = tiny_llm.chat(MESSAGES, SamplingParams(max_new_tokens=30))
    answer = client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=30)  # type: ignore[arg-type]
    (choice,) = answer.choices
    assert choice.message.content == expected.text and choice.message.role == "assistant"
    assert choice.finish_reason == expected.finish_reason
    assert answer.usage is not None
    assert answer.usage.completion_tokens == expected.usage.completion_tokens
    assert answer.usage.prompt_tokens_details is not None
    assert answer.model_extra is not None
    assert answer.model_extra["spec_decode"]["num_steps"] == expected.stats.steps


def test_a_stream_with_usage(client: OpenAI, tiny_llm: LLM) -> None:
    expected = tiny_llm.chat(MESSAGES, SamplingParams(max_new_tokens=30))
    parts = list(
        client.chat.completions.create(
            model="tiny",
            messages=MESSAGES,  # type: ignore[arg-type]
            max_completion_tokens=30,
            stream=True,
            stream_options={"include_usage": True},
            logprobs=True,
            top_logprobs=1,
            extra_body={
                "speculative": "auto",
                "stream_options": {"include_usage": True, "include_steps": True},
            },
        )
    )
    usage = parts[-1].usage
    assert usage is not None and usage.completion_tokens == 30 and parts[-1].choices == []
    choices = [part.choices[0] for part in parts[:-1]]
    assert choices[0].delta.role == "assistant"
    assert "".join(choice.delta.content or "" for choice in choices) == expected.text
    assert [choice.finish_reason for choice in choices if choice.finish_reason] == ["length"]
    entries = [e for c in choices if c.logprobs for e in c.logprobs.content or ()]
    assert len(entries) == 30 and all(entry.logprob < 0 for entry in entries)


def test_completions(client: OpenAI, tiny_llm: LLM) -> None:
    expected = tiny_llm.generate("abc", SamplingParams(max_new_tokens=20, logprobs=2))
    whole = client.completions.create(model="tiny", prompt="abc", max_tokens=20, logprobs=2)
    assert whole.choices[0].text == expected.text
    assert whole.choices[0].logprobs is not None
    assert len(whole.choices[0].logprobs.tokens or ()) == 20
    stream = client.completions.create(model="tiny", prompt="abc", max_tokens=20, stream=True)
    assert "".join(part.choices[0].text for part in stream) == expected.text


def test_models(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").id == "tiny"


def test_errors_have_their_classes(client: OpenAI, tiny_llm: LLM) -> None:
    with pytest.raises(openai.BadRequestError, match="max_tokens") as found:
        client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=0)  # type: ignore[arg-type]
    assert found.value.param == "max_tokens"
    with pytest.raises(openai.NotFoundError, match="gpt-4"):
        client.chat.completions.create(model="gpt-4", messages=MESSAGES)  # type: ignore[arg-type]
    with serving(tiny_llm.with_drafter("none"), api_key="right") as running:
        wrong = OpenAI(base_url=f"{running.url}/v1", api_key="wrong", max_retries=0)
        with pytest.raises(openai.AuthenticationError, match="API key"):
            wrong.models.list()
        assert OpenAI(base_url=f"{running.url}/v1", api_key="right").models.list().data


def test_it_comes_again_when_the_queue_was_full() -> None:
    toy = make_toy()
    with serving(toy.llm, max_queue=0) as running:
        first = running.open("/v1/completions", {"prompt": PROMPT, "stream": True})
        toy.runner.wait_for_call()
        never = OpenAI(base_url=f"{running.url}/v1", api_key="unused", max_retries=0)
        with pytest.raises(openai.RateLimitError, match="busy"):
            never.completions.create(model="model", prompt=PROMPT)
        toy.runner.let_all()
        again = OpenAI(base_url=f"{running.url}/v1", api_key="unused", max_retries=3)
        assert again.completions.create(model="model", prompt=PROMPT).choices[0].text
        first.close()


def test_an_error_inside_a_stream_is_raised() -> None:
    toy = make_toy(gated=False, blocks=(0,))
    works = toy.runner.next_token
    toy.runner.next_token = lambda context: -1 if len(context) == 4 else works(context)
    with serving(toy.llm) as running:
        client = OpenAI(base_url=f"{running.url}/v1", api_key="unused", max_retries=0)
        stream = client.completions.create(model="model", prompt=PROMPT, stream=True)
        assert [next(stream).choices[0].text for _ in range(3)] == ["a", "b", "c"]
        with pytest.raises(openai.APIError, match="step"):
            next(stream)
