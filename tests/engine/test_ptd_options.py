"""PTD's options behind LLM on the real model: the same output, and seeds from the prompt's text."""

from __future__ import annotations

import pytest

from ptd_engine import _core, text
from ptd_engine.config import PTDConfig, SamplingParams
from ptd_engine.llm import LLM
from ptd_engine.model import CausalLM

pytestmark = pytest.mark.demo

MESSAGES = [{"role": "user", "content": "Where is Honolulu, and who was Ada Lovelace?"}]
PARAMS = SamplingParams(max_new_tokens=16, temperature=0.0)


@pytest.fixture(scope="module")
def plain(demo_model: CausalLM, demo_tokenizer: text.Tokenizer) -> LLM:
    return LLM.from_model(demo_model, demo_tokenizer, max_seq_len=256, drafter="none")


@pytest.mark.parametrize(
    "config",
    [
        PTDConfig(expansion="top-k", expansion_k=2, max_draft_nodes=24),
        PTDConfig(expansion="top-p", expansion_p=0.5, max_draft_nodes=24),
        PTDConfig(initialisation="context", max_draft_nodes=12),
        PTDConfig(layout="chained", max_draft_nodes=12),
    ],
    ids=lambda config: f"{config.expansion}-{config.initialisation}-{config.layout}",
)
def test_each_option_equals_plain(plain: LLM, config: PTDConfig) -> None:
    expected = plain.chat(MESSAGES, PARAMS)
    got = plain.with_drafter(config).chat(MESSAGES, PARAMS)
    assert got.token_ids == expected.token_ids
    assert got.stats.mean_draft_nodes > 1


def test_entities_begin_the_draft_tree_of_every_call(plain: LLM) -> None:
    drafted = plain.with_drafter(PTDConfig(initialisation="ner", max_draft_nodes=8))
    drafter = drafted.engine.drafter
    assert isinstance(drafter, _core.PTDDrafter)

    def first_chains() -> list[str]:
        return [drafted.tokenizer.decode(chain).strip() for chain in drafter.initial_chains]

    few = SamplingParams(max_new_tokens=3, temperature=0.0)
    assert drafted.chat(MESSAGES, few).token_ids == plain.chat(MESSAGES, few).token_ids
    assert first_chains() == ["Ada Lovelace", "Honolulu"]
    prompt = "We saw Rome and then Paris"
    assert drafted.generate(prompt, few).token_ids == plain.generate(prompt, few).token_ids
    assert first_chains() == ["Paris", "Rome"]
    list(drafted.stream("from Lima to Quito or", few))
    assert first_chains() == ["Quito", "Lima"]
    ids = drafted.encode("back to Oslo and Bergen again")
    drafted.generate(ids, few)
    assert first_chains() == ["Bergen", "Oslo"]


def test_no_text_is_read_unless_asked_for(plain: LLM) -> None:
    drafter = plain.with_drafter(PTDConfig()).engine.drafter
    assert isinstance(drafter, _core.PTDDrafter)
    assert not drafter.has_seed_source
