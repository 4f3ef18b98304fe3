"""A user's logits_processor: what it is shown, how often, and what becomes of its result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from ptd_engine import ConfigError, EngineError, SamplingParams

from .conftest import llm_of, tokenizer_of
from .logit_tables import MODEL, PROMPT, VOCAB, drafters, engine_over, oracle, run, run_steps
from .test_sampling_logprobs import check


class Recorder:
    """Notes what it is shown; rules out the token before last, and a rising set of others."""

    def __init__(self) -> None:
        self.shown: list[list[int]] = []

    def __call__(self, prefix: Sequence[int], logits: Tensor) -> Tensor:
        self.shown.append(list(prefix))
        logits[prefix[-2]] = -torch.inf  # in place: the tensor is the function's own
        logits[len(self.shown) % VOCAB] -= 1.5  # state: a call too many changes what follows
        return logits


SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"temperature": 0.9, "top_p": 0.9, "seed": 8},
    "processed": {"repetition_penalty": 1.2, "min_new_tokens": 15, "logit_bias": {3: 1.0}},
}


@pytest.mark.parametrize("kernels", ["torch", "cpu"])
@pytest.mark.parametrize("setting", SETTINGS)
def test_it_sees_every_token_once_in_order_and_no_rejected_draft(
    setting: str, kernels: str
) -> None:
    theirs = Recorder()

    def for_transformers(ids: Tensor, scores: Tensor) -> Tensor:
        return theirs(ids[0].tolist(), scores[0].clone())[None]

    settings = {"max_new_tokens": 30, **SETTINGS[setting]}
    expected = oracle(MODEL, SamplingParams(**settings), logits_processor=for_transformers)
    for drafter in drafters(expected).values():
        ours = Recorder()
        params = SamplingParams(logits_processor=ours, logprobs=2, **settings)
        generation, steps = run_steps(engine_over(MODEL, drafter, kernels=kernels), params)
        assert generation.token_ids == expected
        assert ours.shown == [[*PROMPT, *expected[:n]] for n in range(len(expected))]
        check([e for step in steps for e in step.logprobs or ()], expected, 2)


@pytest.mark.parametrize("limit", ["eos", "stop string", "budget"])
def test_it_is_not_called_beyond_the_end(limit: str) -> None:
    free = SamplingParams(max_new_tokens=20, logits_processor=Recorder())
    output = run(engine_over(MODEL, drafters([])["none"], eos=()), free).token_ids
    pieces = [chr(ord("a") + i) for i in range(VOCAB - 3)]
    end = next(i for i, token in enumerate(output) if i > 3 and token > 2)
    end = output.index(output[end])
    for name, drafter in drafters(output).items():
        ours = Recorder()
        settings: dict[str, Any] = {"max_new_tokens": 20, "logits_processor": ours}
        if limit == "budget":
            settings["max_new_tokens"] = end + 1
        elif limit == "stop string":
            settings["stop"] = pieces[output[end] - 3]
        eos = [output[end]] if limit == "eos" else []
        llm = llm_of(engine_over(MODEL, drafter, eos=eos), tokenizer_of(pieces))
        answer = llm.generate(PROMPT, SamplingParams(**settings))
        assert answer.token_ids == output[: end + 1]
        assert len(ours.shown) == end + 1
        if name == "everything":
            assert answer.stats.accepted == end + 1


def test_the_steps_are_those_of_a_request_without_it() -> None:
    plain = SamplingParams(max_new_tokens=60)
    engine = engine_over(MODEL, drafters([])["recycling"])
    expected = run(engine, plain)
    same = run(engine, SamplingParams(max_new_tokens=60, logits_processor=lambda ids, x: x))
    assert same.token_ids == expected.token_ids
    assert same.stats.acceptance_histogram == expected.stats.acceptance_histogram
    assert expected.stats.accepted > 0


def test_it_gets_float32_logits_of_the_whole_matrix_with_the_padding_ruled_out() -> None:
    seen: list[Tensor] = []

    def note(ids: Sequence[int], logits: Tensor) -> Tensor:
        seen.append(logits)
        return torch.where(torch.isinf(logits), 99.0, logits)  # tries to bring the padding back

    engine = engine_over(
        lambda context: [1.0, 2.0, 3.0, 50.0, 60.0],
        drafters([])["none"],
        vocab=3,
        padding=2,
        eos=(),
    )
    params = SamplingParams(max_new_tokens=2, logits_processor=note)
    assert run(engine, params, [1]).token_ids == [2, 2]
    assert [x.tolist() for x in seen] == [[1, 2, 3, -torch.inf, -torch.inf]] * 2
    assert seen[0].dtype == torch.float32 and not seen[0].is_inference()


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (None, "logits_processor returned=None.*also where they were changed in place"),
        (torch.zeros(3), r"returned='\(3,\), torch.float32'.*\(24,\)"),
        (torch.zeros(1, VOCAB), r"returned='\(1, 24\)"),
        (torch.zeros(VOCAB, dtype=torch.int64), r"returned='\(24,\), torch.int64'.*floating"),
        (torch.ones(VOCAB, dtype=torch.bool), "torch.bool"),
        ([0.0] * VOCAB, "returned="),
    ],
)
@pytest.mark.parametrize("at", [0, 4])
def test_a_wrong_result_is_refused_and_the_engine_goes_on(
    returned: Any, said: str, at: int
) -> None:
    def spoil(ids: Sequence[int], logits: Tensor) -> Any:
        return returned if len(ids) == len(PROMPT) + at else logits

    engine = engine_over(MODEL, drafters([])["paper"])
    with pytest.raises(EngineError, match=said):
        run(engine, SamplingParams(logits_processor=spoil))
    assert len(engine.last.token_ids) <= at  # the step that failed handed nothing out
    params = SamplingParams(max_new_tokens=9)
    assert run(engine, params).token_ids == oracle(MODEL, params)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_any_floating_type_may_come_back(dtype: torch.dtype) -> None:
    def pick(ids: Sequence[int], logits: Tensor) -> Tensor:
        return torch.zeros_like(logits, dtype=dtype).index_fill(0, torch.tensor(7), 1.0)

    params = SamplingParams(max_new_tokens=4, logits_processor=pick)
    assert run(engine_over(MODEL, drafters([])["paper"]), params).token_ids == [7] * 4


def test_its_own_exception_passes_with_a_note_and_the_engine_goes_on() -> None:
    engine = engine_over(MODEL, drafters([])["paper"])
    with pytest.raises(ZeroDivisionError) as raised:
        run(engine, SamplingParams(logits_processor=lambda ids, logits: logits * (1 // 0)))
    assert "logits_processor" in raised.value.__notes__[0]
    params = SamplingParams(max_new_tokens=9)
    assert run(engine, params).token_ids == oracle(MODEL, params)


@pytest.mark.parametrize("left", [0, 3])
def test_an_iterator_of_its_own_that_runs_out_does_not_look_like_the_end(left: int) -> None:
    engine, biases = engine_over(MODEL, drafters([])["paper"]), iter([0.0] * left)
    with pytest.raises(EngineError, match=r"logits_processor.*StopIteration"):
        run(engine, SamplingParams(logits_processor=lambda ids, logits: logits + next(biases)))
    assert list(engine.last) == []
    params = SamplingParams(max_new_tokens=9)
    assert run(engine, params).token_ids == oracle(MODEL, params)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_an_unusable_result_names_the_step(bad: float) -> None:
    def spoil(ids: Sequence[int], logits: Tensor) -> Tensor:
        if len(ids) < len(PROMPT) + 3:
            return logits
        return (
            torch.full_like(logits, bad) if bad < 0 else logits.index_fill(0, torch.tensor(5), bad)
        )

    engine = engine_over(MODEL, drafters([])["none"])
    with pytest.raises(EngineError, match="step 3.*logits_processor"):
        run(engine, SamplingParams(logits_processor=spoil))


def test_algorithm_2_is_refused() -> None:
    with pytest.raises(ConfigError, match="logits_processor.*recursive"):
        SamplingParams(logits_processor=Recorder(), verification="recursive")
    with pytest.raises(ConfigError, match="logits_processor=3"):
        SamplingParams(logits_processor=3)  # type: ignore[arg-type]
