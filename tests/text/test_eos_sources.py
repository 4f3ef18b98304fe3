"""A model ends at every id that config.json, generation_config.json or the tokenizer names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from ptd_engine import LLM, SamplingParams
from ptd_engine.testing import tiny

VOCAB, PROMPT = 97, [5, 9, 3]
ABSENT = object()


def write(directory: Path, config: Any, generation_config: Any, tokenizer: int | None) -> Path:
    """A model directory whose three sources name these EOS ids; ABSENT leaves the key out."""
    tiny.save(tiny.build("qwen3"), directory)
    for name, eos in (("config.json", config), ("generation_config.json", generation_config)):
        path = directory / name
        stored = json.loads(path.read_text())
        stored.pop("eos_token_id", None)
        if eos is not ABSENT:
            stored["eos_token_id"] = eos
        path.write_text(json.dumps(stored))
    backend = Tokenizer(models.WordLevel({f"t{i}": i for i in range(VOCAB)}, unk_token="t0"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.decoder = decoders.Fuse()
    made = PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token=None if tokenizer is None else f"t{tokenizer}"
    )
    made.save_pretrained(directory)
    return directory


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> list[int]:
    """What the model writes when nothing ends it."""
    path = write(tmp_path_factory.mktemp("free") / "m", ABSENT, ABSENT, None)
    llm = LLM.from_pretrained(str(path), drafter="none")
    assert llm.engine.eos_token_ids == ()
    ids = llm.generate(PROMPT, SamplingParams(max_new_tokens=12)).token_ids
    assert len(set(ids)) > 4
    return ids


def unused(output: list[int], count: int) -> list[int]:
    return [i for i in range(VOCAB) if i not in output][:count]


@pytest.mark.parametrize("source", [0, 1, 2])
@pytest.mark.parametrize("as_list", [False, True])
@pytest.mark.parametrize("drafter", ["none", "ptd"])
def test_each_source_ends_the_output(
    source: int, as_list: bool, drafter: str, output: list[int], tmp_path: Path
) -> None:
    end = output[4]
    first, second, third = unused(output, 3)
    named: list[Any] = [first, second, third]
    named[source] = end
    if as_list:  # the tokenizer names one id only
        named[0], named[1] = [third, named[0]], [named[1], third]
    path = write(tmp_path / "m", *named)
    llm = LLM.from_pretrained(str(path), drafter=drafter)
    wanted = {i for value in named for i in (value if isinstance(value, list) else [value])}
    assert set(llm.engine.eos_token_ids) == wanted
    result = llm.generate(PROMPT, SamplingParams(max_new_tokens=12))
    stop = output.index(end)
    assert result.token_ids == output[: stop + 1]
    assert result.finish_reason == "stop"
    free = llm.generate(PROMPT, SamplingParams(max_new_tokens=12, ignore_eos=True))
    assert (free.token_ids, free.finish_reason) == (output, "length")


@pytest.mark.parametrize(
    ("config", "generation_config", "tokenizer", "wanted"),
    [
        (7, [8, 7], None, (7, 8)),
        ([7, 8], ABSENT, None, (7, 8)),
        (None, 8, None, (8,)),
        (ABSENT, [10], 11, (10, 11)),  # a turn's end that only the tokenizer knows
        ([], [], 11, (11,)),
        (ABSENT, None, None, ()),
    ],
)
def test_union_of_what_is_there(
    config: Any,
    generation_config: Any,
    tokenizer: int | None,
    wanted: tuple[int, ...],
    tmp_path: Path,
) -> None:
    path = write(tmp_path / "m", config, generation_config, tokenizer)
    assert LLM.from_pretrained(str(path)).engine.eos_token_ids == wanted


def test_without_generation_config(tmp_path: Path) -> None:
    path = write(tmp_path / "m", 7, ABSENT, 8)
    (path / "generation_config.json").unlink()
    assert LLM.from_pretrained(str(path)).engine.eos_token_ids == (7, 8)


def test_an_end_beyond_the_vocabulary_is_harmless(output: list[int], tmp_path: Path) -> None:
    path = write(tmp_path / "m", [VOCAB, 50256], ABSENT, None)
    for drafter in ("none", "ptd"):
        llm = LLM.from_pretrained(str(path), drafter=drafter)
        result = llm.generate(PROMPT, SamplingParams(max_new_tokens=12))
        assert (result.token_ids, result.finish_reason) == (output, "length")
