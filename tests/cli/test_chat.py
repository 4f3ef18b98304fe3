from __future__ import annotations

from typing import Any

import pytest

from ptd_engine import LLM, SamplingParams
from ptd_engine.cli.chat import Conversation
from ptd_engine.runner import EagerRunner

from .conftest import CONTEXT, Run

SHORT = ("--max-new-tokens", 8)
PARAMS = SamplingParams(max_new_tokens=8)


def answer(llm: LLM, *messages: str) -> str:
    roles = ("user", "assistant")
    return llm.chat(
        [{"role": roles[i % 2], "content": text} for i, text in enumerate(messages)], PARAMS
    ).text


def test_the_conversation_is_kept_and_reset(run: Run, chat_model: str) -> None:
    llm = LLM.from_pretrained(chat_model)
    first = answer(llm, "Hi")
    second = answer(llm, "Hi", first, "Go on")
    fresh = answer(llm, "Go on")
    assert second != fresh  # else the test below would show nothing
    result = run("chat", chat_model, *SHORT, input="Hi\n\nGo on\n/reset\nGo on\n")
    assert result.exit_code == 0, result.output
    texts = [result.stdout.find(text) for text in (first, second, "forgotten", fresh)]
    assert -1 not in texts and texts == sorted(texts)


def test_exit_and_unknown_commands(run: Run, chat_model: str) -> None:
    result = run("chat", chat_model, *SHORT, input="/what now\n/exit\nHi\n")
    assert result.exit_code == 0
    assert "Unknown command /what" in result.stdout
    assert answer(LLM.from_pretrained(chat_model), "Hi") not in result.stdout


def test_a_full_context_is_said_and_the_loop_goes_on(run: Run, chat_model: str) -> None:
    llm = LLM.from_pretrained(chat_model)
    result = run("chat", chat_model, *SHORT, input="x" * CONTEXT + "\nHi\n")
    assert result.exit_code == 0
    assert "The context is full" in result.stdout
    assert answer(llm, "Hi") in result.stdout


def test_an_answer_cut_by_the_context_says_so(
    chat_model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    llm = LLM.from_pretrained(chat_model)
    overhead = len(llm.encode_chat([{"role": "user", "content": ""}]))
    Conversation(llm, PARAMS).answer("x" * (CONTEXT - overhead - 3))
    assert "[the context is full: the answer was cut" in capsys.readouterr().out
    Conversation(llm, SamplingParams(max_new_tokens=1)).answer("x")
    assert "[cut after --max-new-tokens 1]" in capsys.readouterr().out


def test_ctrl_c_cancels_the_answer_only(
    run: Run, chat_model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = LLM.from_pretrained(chat_model)
    expected = answer(llm, "Again")
    wait, calls = EagerRunner.wait, []

    def interrupt_once(self: EagerRunner) -> Any:
        calls.append(1)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return wait(self)

    monkeypatch.setattr(EagerRunner, "wait", interrupt_once)
    options = (*SHORT, "--drafter", "ptd")  # the default's engine measures steps when it is made
    result = run("chat", chat_model, *options, input="Hi\nAgain\n")
    assert result.exit_code == 0, result.output
    # Nothing was said before the interrupt, so the next answer is that of a new conversation.
    assert "[cancelled]" in result.stdout and expected in result.stdout


def test_a_base_model_cannot_chat(run: Run, base_model: str) -> None:
    result = run("chat", base_model, input="Hi\n")
    assert result.exit_code == 2
    assert "no chat template" in result.stderr


def test_stats_after_each_answer(run: Run, chat_model: str) -> None:
    result = run("chat", chat_model, *SHORT, "--stats", input="Hi\nGo on\n")
    assert result.exit_code == 0, result.output
    assert result.stderr.count("Nodes by source") == 2 and "runner-up" in result.stderr
