"""End-of-sequence and stop ids: where they end an output, and where they must not."""

from __future__ import annotations

import pytest

from ptd_engine import SamplingParams
from ptd_engine.errors import ConfigError
from ptd_engine.testing.forced import FixedTrees
from ptd_engine.testing.toy import scripted
from ptd_engine.text import eos_union

from .conftest import EOS, OTHER, PROMPT, answer, chunks_of, engine_of, ids_of, toy

TEXT = [*"abcdefgh"]


def test_an_eos_inside_an_accepted_block_ends_ids_text_stream_and_cache(
    blocks: tuple[int, ...],
) -> None:
    llm = toy(["a", "b", "<eos>", "c", "d"], blocks)
    chunks, output = chunks_of(llm, SamplingParams())
    assert output.token_ids == [*ids_of(["a", "b"]), EOS]
    assert (output.text, output.finish_reason) == ("ab", "stop")
    assert llm.engine.last.kv_len == 1 + 2
    assert output.usage.completion_tokens == 3
    assert output.stats.accepted <= 3
    assert "c" not in "".join(chunk.text for chunk in chunks)


@pytest.mark.parametrize("end", range(8))
def test_any_token_may_be_the_eos(end: int, blocks: tuple[int, ...]) -> None:
    ids = ids_of(TEXT)
    llm = toy(TEXT, blocks, eos=[ids[end]])
    output = chunks_of(llm, SamplingParams())[1]
    assert (output.token_ids, output.finish_reason) == (ids[: end + 1], "stop")
    named = SamplingParams(stop_token_ids=[ids[end]])
    assert chunks_of(toy(TEXT, blocks), named)[1].token_ids == ids[: end + 1]


def test_ignore_eos_goes_on_and_explicit_stop_ids_still_stop(blocks: tuple[int, ...]) -> None:
    pieces = ["a", "b", "<eos>", "c", "d", "e"]
    free = answer(pieces, blocks, ignore_eos=True)
    assert (free.token_ids, free.finish_reason) == (ids_of(pieces), "length")
    assert free.text == "abcde"
    named = answer(pieces, blocks, ignore_eos=True, stop_token_ids=ids_of(pieces)[3:4])
    assert (named.token_ids, named.finish_reason) == (ids_of(pieces)[:4], "stop")
    same = answer(pieces, blocks, ignore_eos=True, stop_token_ids=[EOS])
    assert (same.token_ids, same.finish_reason) == (ids_of(pieces)[:3], "stop")


@pytest.mark.parametrize(
    ("config", "generation_config", "tokenizer"),
    [
        (151645, [151645, 151643], None),
        (151643, None, None),
        ([151643], 151645, None),
        (None, None, 151643),
        (151645, [151645], [151643]),
        ([1, 2], None, 151643),
    ],
)
def test_every_source_of_end_ids_counts(
    config: object, generation_config: object, tokenizer: object, blocks: tuple[int, ...]
) -> None:
    end_ids = eos_union(config, generation_config, tokenizer)  # type: ignore[arg-type]
    script = [26194, 13, 151643, 7, 7]
    trees = [[(26194, -1), (13, 0), (151643, 1), (7, 2), (7, 3)][: max(blocks)]]
    engine = engine_of(
        scripted(script, prompt_len=1, other=OTHER),
        FixedTrees(*trees),
        vocab_size=151936,
        eos=end_ids,
    )
    generation = engine.generate([PROMPT], SamplingParams())
    list(generation)
    assert (generation.token_ids, generation.finish_reason) == (script[:3], "stop")


def test_without_any_end_id_the_budget_ends_the_output() -> None:
    output = chunks_of(toy(["a", "<eos>", "b"], eos=()), SamplingParams(max_new_tokens=3))[1]
    assert (output.token_ids, output.finish_reason) == (ids_of(["a", "<eos>", "b"]), "length")


def test_an_eos_in_a_rejected_candidate_does_not_end_the_request() -> None:
    five, six = 5, 6
    drafter = FixedTrees([(EOS, -1), (five, -1)], [(OTHER, -1)])
    model = scripted([five, six, EOS], prompt_len=1, other=OTHER)
    generation = engine_of(model, drafter, eos=[EOS]).generate([PROMPT], SamplingParams())
    assert next(generation).token_ids == [five, six]
    assert generation.finish_reason is None
    assert next(generation).token_ids == [EOS]
    assert generation.finish_reason == "stop"


def test_an_eos_below_a_rejected_candidate_does_not_end_the_request() -> None:
    drafter = FixedTrees([(9, -1), (EOS, 0), (5, -1), (EOS, 2), (6, 2)])
    model = scripted([5, 6, 7, EOS], prompt_len=1, other=OTHER)
    generation = engine_of(model, drafter, eos=[EOS]).generate([PROMPT], SamplingParams())
    assert [step.token_ids for step in generation] == [[5, 6, 7], [EOS]]


def test_recursive_verification_stops_at_the_same_token(blocks: tuple[int, ...]) -> None:
    pieces = ["a", "b", "<eos>", "c"]
    output = answer(pieces, blocks, verification="recursive", temperature=1.0, max_new_tokens=9)
    assert (output.token_ids, output.finish_reason) == (ids_of(pieces)[:3], "stop")


def test_a_stop_id_outside_the_vocabulary_is_refused() -> None:
    llm = toy(TEXT)
    with pytest.raises(ConfigError, match=r"stop_token_ids=10000000 .*token ids from 0 to"):
        llm.generate([PROMPT], SamplingParams(stop_token_ids=[10**7]))
