"""The switch of a request, and what an answer tells of drafting, on counters known beforehand."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

from ptd_engine import LLM
from ptd_engine.server.jobs import Job

from .conftest import CHAT, COMPLETIONS, PROMPT, Running, make_toy, serving

SHORT = {"prompt": PROMPT, "max_tokens": 6}


@pytest.mark.parametrize("fields", [{}, {"temperature": 1.2, "seed": 5, "top_p": 0.9}])
def test_both_ways_give_the_same_tokens(server: Running, fields: dict[str, Any]) -> None:
    body = {"messages": [{"role": "user", "content": "aaaa bbbb aaaa"}], "max_tokens": 60, **fields}
    plain = server.post(CHAT, {**body, "speculative": "none"}).json
    drafted = server.post(CHAT, {**body, "speculative": "auto"}).json
    assert plain["choices"] == drafted["choices"] and plain["usage"] == drafted["usage"]
    assert plain["spec_decode"]["speculative"] == "none"
    assert plain["spec_decode"]["num_draft_tokens"] == 0
    assert plain["spec_decode"]["num_steps"] == 60
    assert drafted["spec_decode"] != plain["spec_decode"]
    assert server.post(CHAT, body).json["spec_decode"] == drafted["spec_decode"]  # the default


@pytest.mark.demo
def test_drafting_pays_on_the_demo_model(demo_llm: LLM) -> None:
    body = {"messages": [{"role": "user", "content": "List ten books with title and author."}]}
    with serving(demo_llm.with_drafter("ptd")) as running:
        plain, drafted = (
            running.post(CHAT, {**body, "max_tokens": 80, "speculative": way}).json
            for way in ("none", "auto")
        )
    assert plain["choices"] == drafted["choices"]
    assert drafted["spec_decode"]["decoding_efficiency"] > 1.1
    assert drafted["spec_decode"]["num_accepted_tokens"] > 0


def test_counters_of_three_steps() -> None:
    # 0, 2 and 1 candidates accepted of the 4, 4 and 4 proposed.
    from contract.conftest import ids_of

    from ptd_engine.testing.forced import FixedTrees, chain

    toy = make_toy(gated=False)
    a, b, c, d, e, f, *_ = ids_of([chr(97 + i) for i in range(26)])
    toy.llm.engine.drafter = FixedTrees(chain(9, 9, 9, 9), chain(b, c, 9, 9), chain(e, 9, 9, 9))
    with serving(toy.llm) as running:
        found = running.post(COMPLETIONS, SHORT).json
        assert found["choices"][0]["text"] == "abcdef"
        assert found["spec_decode"] == {
            "speculative": "auto",
            "num_drafts": 3,
            "num_draft_tokens": 12,
            "num_accepted_tokens": 3,
            "num_accepted_tokens_per_pos": [2, 1],
            "draft_acceptance_rate": 0.25,
            "mean_acceptance_length": 2.0,
            "num_steps": 3,
            "decoding_efficiency": 2.0,
        }
        assert (a, d, f) == (3, 6, 8)
        for name, value in (
            ("ptd_spec_decode_num_drafts_total", 3),
            ("ptd_spec_decode_num_draft_tokens_total", 12),
            ("ptd_spec_decode_num_accepted_tokens_total", 3),
            ("ptd_steps_total", 3),
            ("ptd_generation_tokens_total", 6),
            ("ptd_prompt_tokens_total", 1),
            ("ptd_decoding_efficiency_sum", 2.0),
            ("ptd_inter_token_latency_seconds_count", 5),  # of 6 tokens; the first step had one
            ("ptd_time_per_output_token_seconds_count", 1),
            ("ptd_time_to_first_token_seconds_count", 1),
            ("ptd_queue_time_seconds_count", 1),
            ("ptd_request_latency_seconds_count", 1),
            ("ptd_requests_running", 0),
            ("ptd_kv_cache_usage_ratio", 0),
        ):
            assert running.metric(name) == value, name
        name = "ptd_spec_decode_num_accepted_tokens_per_pos_total"
        assert [running.metric(name, position=str(at)) for at in range(3)] == [2, 1, 0]


def test_nothing_drafted_is_no_nan(server: Running) -> None:
    found = server.post(COMPLETIONS, {"prompt": "a", "speculative": "none"}).json["spec_decode"]
    assert found["draft_acceptance_rate"] == 0.0 and found["num_accepted_tokens_per_pos"] == []
    assert b"NaN" not in server.get("/metrics").body
    assert all(not isinstance(v, float) or math.isfinite(v) for v in found.values())


def test_a_sub_counter_is_never_larger_than_the_output() -> None:
    toy = make_toy(gated=False, blocks=(9,))
    with serving(toy.llm) as running:
        for budget in range(1, 12):
            found = running.post(COMPLETIONS, {**SHORT, "max_tokens": budget}).json
            assert found["usage"]["completion_tokens"] == budget
            assert found["spec_decode"]["num_accepted_tokens"] <= budget


def test_time_per_token_counts_tokens() -> None:
    nothing: Any = None

    async def make() -> Job:
        return Job("id", nothing, nothing, prompt_len=1, speculative=True, arrived=0.0)

    job = asyncio.run(make())
    assert job.tpot_s is None
    # 10 tokens in 4 chunks, over one second after the first.
    job.tokens, job.times.first_token, job.times.last_token = 10, 5.0, 6.0
    assert job.tpot_s == pytest.approx(1.0 / 9)
    job.tokens = 1
    assert job.tpot_s is None


def test_steps_of_a_stream() -> None:
    toy = make_toy(["a", "é", "b", "c", "d"], blocks=(1,), gated=False)
    options = {"stream": True, "stream_options": {"include_steps": True}}
    with serving(toy.llm) as running:
        *parts, end, done = running.post(COMPLETIONS, {**SHORT, "max_tokens": 5, **options}).events
    assert done == "[DONE]" and "step" not in end
    steps = [part["step"] for part in parts]
    assert [step["index"] for step in steps] == [1, 2, 3]
    tokens = [token for step in steps for token in step["tokens"]]
    assert "".join(token["text"] for token in tokens) == "aébcd"
    assert [token["drafted"] for token in tokens] == [True, False, True, False, True]
    for part, step in zip(parts, steps, strict=True):
        assert part["choices"][0]["text"] == "".join(token["text"] for token in step["tokens"])
        tree = step["tree"]
        assert len(tree["tokens"]) == len(tree["parents"]) >= tree["n_verify"]
        assert len(tree["accepted_rows"]) == step["accepted"]


@pytest.mark.parametrize("block", [0, 1, 3])
def test_characters_are_never_cut(block: int) -> None:
    text = "a😀世b"
    pieces = [chr(byte) for byte in text.encode()]
    toy = make_toy(pieces, blocks=(block,), kind="bytes", gated=False)
    body = {"prompt": PROMPT, "max_tokens": len(pieces), "stream": True}
    options = {"stream_options": {"include_steps": True}}
    with serving(toy.llm) as running:
        for fields in ({}, options):
            *parts, _end, _done = running.post(COMPLETIONS, {**body, **fields}).events
            texts = [part["choices"][0]["text"] for part in parts]
            assert "".join(texts) == text and not any("\ufffd" in piece for piece in texts)
        cut = running.post(COMPLETIONS, {**body, "max_tokens": 3}).events
        texts = [part["choices"][0]["text"] for part in cut[:-1]]
        assert "".join(texts) == "a\ufffd"  # as decoding all of it


@pytest.mark.parametrize("block", [0, 1, 8])
def test_stop_strings_inside_accepted_blocks(block: int) -> None:
    toy = make_toy(blocks=(block,), gated=False)
    body = {"prompt": PROMPT, "max_tokens": 26, "stop": ["zz", "de", "hij"]}
    with serving(toy.llm) as running:
        found = running.post(COMPLETIONS, body).json
        assert found["choices"][0]["text"] == "abc"
        assert found["choices"][0]["finish_reason"] == "stop"
        assert found["usage"]["completion_tokens"] == 5
        *parts, end, _done = running.post(COMPLETIONS, {**body, "stream": True}).events
        assert "".join(part["choices"][0]["text"] for part in parts) == "abc"
        assert end["choices"][0]["finish_reason"] == "stop"
        kept = running.post(COMPLETIONS, {**body, "include_stop_str": True}).json
        assert kept["choices"][0]["text"] == "abcde"
