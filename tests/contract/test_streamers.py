"""Streamers of transformers, and anything shaped like them, on our own generate and chat."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from torch import Tensor
from transformers import TextIteratorStreamer, TextStreamer

from ptd_engine import LLM, ConfigError, PromptError, SamplingParams

from .conftest import EOS, ids_of, toy

PIECES = ["The", " sky", " is", " blue", "\n", "and", " high", "<eos>"]
PARAMS = SamplingParams(max_new_tokens=20)


class Recorder:
    def __init__(self, fails_at: int = -1) -> None:
        self.puts: list[list[int] | list[list[int]]] = []
        self.ends = 0
        self.fails_at = fails_at

    def put(self, value: Tensor) -> None:
        if len(self.puts) == self.fails_at:
            raise ZeroDivisionError
        assert str(value.dtype) == "torch.int64" and self.ends == 0
        self.puts.append(value.tolist())

    def end(self) -> None:
        self.ends += 1


def test_prompt_tokens_one_by_one_and_an_end(blocks: tuple[int, ...]) -> None:
    recorder = Recorder()
    output = toy(PIECES, blocks).generate([0], PARAMS, streamer=recorder)
    assert output.token_ids == ids_of(PIECES) and output.token_ids[-1] == EOS
    assert recorder.puts == [[[0]], *([token] for token in output.token_ids)]
    assert recorder.ends == 1


def test_text_streamer_prints_the_text(
    blocks: tuple[int, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    llm = toy(PIECES, blocks)
    streamer = TextStreamer(llm.tokenizer.hf, skip_prompt=True, skip_special_tokens=True)
    output = llm.generate([0], PARAMS, streamer=streamer)
    assert capsys.readouterr().out == output.text + "\n" == "The sky is blue\nand high\n"


def test_text_iterator_streamer_gives_the_text_to_another_thread() -> None:
    llm = toy(PIECES, (2,))
    streamer = TextIteratorStreamer(
        llm.tokenizer.hf, skip_prompt=True, timeout=30, skip_special_tokens=True
    )
    worker = threading.Thread(
        target=llm.generate, args=([0], PARAMS), kwargs={"streamer": streamer}
    )
    worker.start()
    assert "".join(streamer) == "The sky is blue\nand high"
    worker.join(timeout=30)


@pytest.mark.parametrize("prompt", [[], [999]])
def test_an_error_ends_the_stream_too(prompt: list[int]) -> None:
    recorder = Recorder()
    with pytest.raises(PromptError):
        toy(PIECES).generate(prompt, PARAMS, streamer=recorder)
    assert (recorder.puts, recorder.ends) == ([], 1)


@pytest.mark.parametrize(
    "call",
    [
        lambda llm, recorder: llm.chat([], streamer=recorder),
        lambda llm, recorder: llm.chat([], streamer=recorder, max_tokens=1),
        lambda llm, recorder: llm.generate([0], streamer=recorder, max_tokens=1),
    ],
    ids=["messages", "chat's argument", "generate's argument"],
)
def test_an_error_before_there_is_a_prompt_ends_it_too(
    call: Callable[[LLM, Recorder], object],
) -> None:
    recorder = Recorder()
    with pytest.raises((PromptError, ConfigError)):
        call(toy(PIECES), recorder)
    assert (recorder.puts, recorder.ends) == ([], 1)


@pytest.mark.parametrize("fails_at", [0, 1, 3])
def test_a_streamer_that_fails_cancels_the_request(fails_at: int) -> None:
    llm, recorder = toy(PIECES, (1,)), Recorder(fails_at)
    with pytest.raises(ZeroDivisionError):
        llm.generate([0], PARAMS, streamer=recorder)
    assert recorder.ends == 1
    assert llm.generate([0], PARAMS).token_ids == ids_of(PIECES)


def test_what_is_no_streamer_is_refused() -> None:
    with pytest.raises(ConfigError, match="streamer=.*put"):
        toy(PIECES).generate([0], PARAMS, streamer=print)  # type: ignore[arg-type]
