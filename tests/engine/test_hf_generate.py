"""`model.generate(..., custom_generate=ptd_engine.hf.generate)` against transformers' own loop."""

from __future__ import annotations

import functools
import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    MaxTimeCriteria,
    StoppingCriteriaList,
    TextIteratorStreamer,
)

import ptd_engine.hf
from ptd_engine import CheckpointError, ConfigError, EngineError, PTDConfig
from ptd_engine.hf.served import engine_for
from ptd_engine.testing import tiny

FAMILIES = ["llama2", "llama31", "llama32", "llama_bias", "mistral", "qwen2", "qwen25", "qwen3"]
PROMPT = torch.tensor([[5, 9, 11, 3, 9, 11, 3, 9]])


@pytest.fixture(scope="module")
def build() -> Callable[[str], Any]:
    return functools.cache(lambda family: tiny.build(family, seed=3))


@pytest.fixture
def llama(build: Callable[[str], Any]) -> Any:
    return build("llama3")


def ours(model: Any, prompt: Tensor = PROMPT, **settings: Any) -> Any:
    return model.generate(prompt, custom_generate=ptd_engine.hf.generate, **settings)


def both(model: Any, prompt: Tensor = PROMPT, **settings: Any) -> Tensor:
    """Our ids, after comparison with those of transformers."""
    expected = model.generate(prompt, **settings)
    got: Tensor = ours(model, prompt, **settings)
    assert got.dtype == expected.dtype and got.device == expected.device
    assert got.tolist() == expected.tolist()
    return got


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_is_transformers_token_for_token(build: Callable[[str], Any], family: str) -> None:
    both(build(family), max_new_tokens=40, do_sample=False)


def test_no_drafter_changes_anything(llama: Any) -> None:
    expected = llama.generate(PROMPT, max_new_tokens=60, eos_token_id=None)
    for drafter in ("ptd", "none", PTDConfig(), PTDConfig(share_pool=True)):
        got = ours(llama, max_new_tokens=60, eos_token_id=None, drafter=drafter)
        assert got.tolist() == expected.tolist()


@pytest.mark.parametrize("rope", ["linear", "dynamic", "yarn"])
def test_scaled_rotations(rope: str) -> None:
    model = tiny.build(
        "llama3", seed=5, max_position_embeddings=32, rope_parameters=tiny.ROPES[rope]
    )
    for length in (8, 40):
        both(model, torch.arange(3, 3 + length)[None], max_new_tokens=12)


@pytest.mark.parametrize(
    "settings",
    [
        {},  # transformers' default is 20 tokens
        {"max_length": 31},
        {"max_new_tokens": 1},
        {"max_new_tokens": 25, "repetition_penalty": 1.3},
        {"max_new_tokens": 25, "min_new_tokens": 20, "eos_token_id": [2, 3, 9, 11]},
        {"max_length": 40, "min_length": 30, "eos_token_id": [9, 11]},
        {"max_new_tokens": 25, "eos_token_id": 9},
        {"max_new_tokens": 25, "no_repeat_ngram_size": 2, "repetition_penalty": 1.2},
        {"max_new_tokens": 25, "bad_words_ids": [[9], [3, 11]], "min_new_tokens": 5},
        {"max_new_tokens": 25, "suppress_tokens": [9, 11, 3], "sequence_bias": [[[7], 3.0]]},
        {"max_new_tokens": 9, "forced_eos_token_id": 2},
        {"max_new_tokens": 25, "do_sample": True, "top_k": 1},
        {"max_new_tokens": 25, "do_sample": True, "top_p": 1e-9, "temperature": 0.7},
        {"max_new_tokens": 25, "do_sample": True, "top_k": 1, "typical_p": 0.9, "min_p": 0.1},
    ],
    ids=str,
)
def test_settings_of_generate_hold(llama: Any, settings: dict[str, Any]) -> None:
    both(llama, **settings)


class Ban:
    """Forbids what came last; counts its calls."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
        self.seen.append(ids.shape[1])
        return scores.index_fill(1, ids[0, -1:], -torch.inf)


def test_own_processors_are_called_once_a_token(llama: Any) -> None:
    ban = Ban()
    expected = llama.generate(
        PROMPT, max_new_tokens=20, logits_processor=LogitsProcessorList([Ban()])
    )
    got = ours(llama, max_new_tokens=20, logits_processor=LogitsProcessorList([ban]))
    assert got.tolist() == expected.tolist()
    assert ban.seen == list(range(8, 8 + got.shape[1] - 8))


def test_own_criteria_stop_within_accepted_blocks(llama: Any) -> None:
    for length in range(9, 14):

        def long_enough(ids: Tensor, scores: Any, most: int = length) -> Tensor:
            return torch.tensor([ids.shape[1] >= most])

        criteria: Any = StoppingCriteriaList([long_enough, MaxTimeCriteria(1000.0)])
        assert both(llama, max_new_tokens=50, stopping_criteria=criteria).shape[1] == length


def test_sampling_follows_the_seed(llama: Any) -> None:
    settings: dict[str, Any] = {"max_new_tokens": 30, "do_sample": True, "temperature": 1.5}
    seeded = [ours(llama, seed=s, **settings).tolist() for s in (7, 7, 8)]
    assert seeded[0] == seeded[1] != seeded[2]
    plain = ours(llama, seed=7, drafter="none", **settings).tolist()
    assert plain == seeded[0]
    by_torch, by_generator = [], []
    for manual in (1, 1, 2):
        torch.manual_seed(manual)
        by_torch.append(ours(llama, **settings).tolist())
        generator = torch.Generator().manual_seed(manual)
        by_generator.append(ours(llama, seed=generator, **settings).tolist())
    for found in (by_torch, by_generator):
        assert found[0] == found[1] != found[2]
    state = torch.get_rng_state()
    ours(llama, max_new_tokens=5, do_sample=False)
    assert torch.equal(state, torch.get_rng_state())  # greedy draws nothing


class Recorder:
    def __init__(self) -> None:
        self.puts: list[Any] = []
        self.ends = 0

    def put(self, value: Tensor) -> None:
        self.puts.append(value.tolist())

    def end(self) -> None:
        self.ends += 1


def test_a_streamer_gets_what_transformers_gives_it(llama: Any) -> None:
    theirs, recorder, wrapped, direct = (Recorder() for _ in range(4))
    llama.generate(PROMPT, max_new_tokens=12, streamer=theirs)
    ours(llama, max_new_tokens=12, streamer=recorder)
    partial = functools.partial(ptd_engine.hf.generate, drafter="none")
    llama.generate(PROMPT, max_new_tokens=12, streamer=wrapped, custom_generate=partial)
    ptd_engine.hf.generate(
        llama, PROMPT, stopping_criteria=[], streamer=direct, generation_config=None
    )
    assert recorder.puts == wrapped.puts == theirs.puts
    assert recorder.ends == wrapped.ends == theirs.ends == direct.ends == 1
    assert direct.puts[: len(theirs.puts) - 1] == theirs.puts[1:]


class Numbers:
    """A tokenizer for TextIteratorStreamer."""

    def decode(self, ids: Any, **_: Any) -> str:
        return "".join(f"{i} " for i in torch.as_tensor(ids).reshape(-1).tolist())


def test_text_iterator_streamer_ends_also_after_an_error(llama: Any) -> None:
    streamer: Any = TextIteratorStreamer(Numbers(), skip_prompt=True, timeout=30)  # type: ignore[arg-type]
    settings = {"max_new_tokens": 6, "streamer": streamer}
    worker = threading.Thread(target=ours, args=(llama,), kwargs=settings)
    worker.start()
    text = "".join(streamer)
    worker.join(timeout=30)
    assert text.split() == [
        str(i) for i in llama.generate(PROMPT, max_new_tokens=6)[0, 8:].tolist()
    ]
    with pytest.raises(ConfigError):
        ours(llama, streamer=streamer, seed=-1, do_sample=True)
    assert "".join(streamer) == ""


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"num_beams": 2}, "num_beams=2"),
        ({"do_sample": True, "num_return_sequences": 3}, "num_return_sequences=3"),
        ({"return_dict_in_generate": True, "output_scores": True}, "output_scores"),
        ({"return_dict_in_generate": True, "output_hidden_states": True}, "output_hidden_states"),
        (
            {"attention_mask": torch.tensor([[0, *[1] * 7]])},
            r"attention_mask=\[0, 1, .*no padding.*input_ids\[:, attention_mask\[0\]\.bool\(\)\]",
        ),
        ({"position_ids": torch.arange(1, 9)[None]}, "position_ids"),
        ({"seed": -1, "do_sample": True}, "seed=-1 .*None draws another one.*torch.Generator"),
        ({"seed": 1.5, "do_sample": True}, "seed=1.5"),
        ({"drafter": "eagle"}, "drafter='eagle'"),
        ({"kernels": "none such"}, "none such"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_not_done_is_named(llama: Any, settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        ours(llama, **settings)


def test_a_padded_prompt_is_served_as_the_hint_says(llama: Any) -> None:
    padded = torch.cat((torch.tensor([[0, 0]]), PROMPT), dim=1)
    mask = (padded != 0).long()
    with pytest.raises(ConfigError, match="attention_mask"):
        ours(llama, padded, attention_mask=mask, max_new_tokens=5)
    expected = ours(llama, max_new_tokens=5)
    assert ours(llama, padded[:, mask[0].bool()], max_new_tokens=5).tolist() == expected.tolist()


def test_a_batch_is_refused(llama: Any) -> None:
    with pytest.raises(ConfigError, match=r"shape of input_ids=\(2, 8\)"):
        ours(llama, PROMPT.repeat(2, 1))


def test_a_dict_in_generate(llama: Any) -> None:
    found = ours(llama, max_new_tokens=5, return_dict_in_generate=True)
    assert found.sequences.tolist() == both(llama, max_new_tokens=5).tolist()


def test_one_engine_a_model_as_long_as_the_weights_stay() -> None:
    model = tiny.build("llama3", seed=4)
    settings: dict[str, Any] = {"drafter": "hybrid", "kernels": "auto", "context": 40}
    before = both(model, max_new_tokens=20)
    engine = engine_for(model, **settings)
    both(model, max_new_tokens=20)
    assert engine_for(model, **settings) is engine
    with torch.no_grad():
        model.lm_head.weight.mul_(-1)
    assert both(model, max_new_tokens=20).tolist() != before.tolist()
    again = engine_for(model, **settings)
    assert again is not engine
    assert both(model, torch.arange(3, 90)[None], max_new_tokens=50).shape[1] == 137  # beyond 128
    longer = engine_for(model, **settings)
    assert longer.max_seq_len >= 137
    assert longer.step_times is again.step_times is not None  # the same model: measured once
    assert again.step_times is not engine.step_times
    ptd_engine.hf.release(model)
    assert engine_for(model, **settings) is not longer


def test_the_engine_goes_with_the_model() -> None:
    model = tiny.build("llama3", seed=4)
    ours(model, max_new_tokens=2)
    engine = weakref.ref(engine_for(model, drafter="hybrid", kernels="auto", context=10))
    assert engine() is not None
    del model
    gc.collect()
    assert engine() is None


def test_untied_after_all_counts_as_what_it_computes() -> None:
    model = tiny.build("llama32", seed=4)
    model.lm_head.weight = torch.nn.Parameter(-model.lm_head.weight.detach().clone())
    both(model, max_new_tokens=15)


def test_models_that_are_something_else_are_refused() -> None:
    model = tiny.build("llama3", seed=4)

    class Odd(type(model)):  # type: ignore[misc]
        pass

    model.__class__ = Odd
    with pytest.raises(CheckpointError, match="Odd"):
        ours(model)
    quantised = tiny.build("llama3", seed=4)
    quantised.config.quantization_config = {"quant_method": "gptq"}
    with pytest.raises(CheckpointError, match="quantised"):
        ours(quantised)
    adapted = tiny.build("llama3", seed=4)
    adapted.register_parameter("lora_A", torch.nn.Parameter(torch.zeros(1)))
    with pytest.raises(CheckpointError, match="merge"):
        ours(adapted)
    offloaded = tiny.build("llama3", seed=4)
    offloaded.lm_head.to("meta")
    with pytest.raises(CheckpointError, match="not in memory"):
        ours(offloaded)


def test_logits_that_are_not_finite_fail_the_call_only() -> None:
    model = tiny.build("llama3", seed=4)
    kept = model.model.norm.weight.clone()
    with torch.no_grad():
        model.model.norm.weight.fill_(float("nan"))
    with pytest.raises(EngineError, match="step 0"):
        ours(model)
    with torch.no_grad():
        model.model.norm.weight.copy_(kept)
    both(model)
