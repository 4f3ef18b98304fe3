from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ptd_engine import LLM, PTDConfig, SamplingParams
from ptd_engine.runner import EagerRunner

from .conftest import CONTEXT, Run, json_lines

Write = Callable[[str, str], Path]
SHORT = ("--max-new-tokens", 12)


def test_json_is_one_object_with_everything(run: Run, chat_model: str) -> None:
    result = run("generate", chat_model, "--prompt", "Hello", "--json", *SHORT)
    assert result.exit_code == 0, result.output
    (answer,) = json_lines(result)
    assert set(answer) == {"id", "text", "token_ids", "finish_reason", "usage", "stats"}
    llm = LLM.from_pretrained(chat_model)
    ids = llm.encode_chat([{"role": "user", "content": "Hello"}])
    expected = llm.generate(ids, SamplingParams(max_new_tokens=12))
    assert (answer["text"], answer["token_ids"]) == (expected.text, expected.token_ids)
    assert answer["finish_reason"] == expected.finish_reason
    assert answer["usage"] == {
        "prompt_tokens": len(ids),
        "completion_tokens": len(expected.token_ids),
    }
    assert answer["stats"]["tokens"] == len(expected.token_ids)
    assert all(math.isfinite(v) for v in answer["stats"].values() if isinstance(v, float))


def test_text_goes_to_stdout_and_the_summary_to_stderr(run: Run, chat_model: str) -> None:
    # Not the default drafter: it sizes its trees by times, so that the steps of two runs differ.
    same = ("generate", chat_model, "--prompt", "Hello", "--drafter", "ptd", *SHORT)
    (answer,) = json_lines(run(*same, "--json"))
    result = run(*same)
    assert result.exit_code == 0
    assert result.stdout == answer["text"] + "\n"
    assert f"{len(answer['token_ids'])} tokens in {answer['stats']['steps']} steps" in result.stderr
    assert f"finish: {answer['finish_reason']}" in result.stderr


@pytest.mark.parametrize(
    ("options", "prompt_tokens"), [(("--raw",), 5), (("--chat",), 23), ((), 23)]
)
def test_chat_or_raw(
    run: Run, chat_model: str, options: tuple[str, ...], prompt_tokens: int
) -> None:
    result = run("generate", chat_model, "--prompt", "Hello", "--json", *SHORT, *options)
    assert json_lines(result)[0]["usage"]["prompt_tokens"] == prompt_tokens


def test_a_model_without_a_template_completes(run: Run, base_model: str) -> None:
    result = run("generate", base_model, "--prompt", "Hello", "--json", *SHORT)
    assert json_lines(result)[0]["usage"]["prompt_tokens"] == 5
    refused = run("generate", base_model, "--prompt", "Hello", "--chat")
    assert refused.exit_code == 2
    assert "no chat template: pass --raw" in refused.stderr


def test_every_drafter_and_sampling_option_reaches_the_engine(
    run: Run, chat_model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Any] = {}
    load, generate = LLM.from_pretrained.__func__, LLM.generate  # type: ignore[attr-defined]

    def spy_load(cls: type[LLM], /, model: str, **options: Any) -> LLM:
        seen.update(options)
        made: LLM = load(cls, model, **options)
        return made

    def spy_generate(self: LLM, prompt: Any, params: SamplingParams) -> Any:
        seen["params"] = params
        return generate(self, prompt, params)

    monkeypatch.setattr(LLM, "from_pretrained", classmethod(spy_load))
    monkeypatch.setattr(LLM, "generate", spy_generate)
    sampling = {"temperature": 0.7, "top_k": 9, "top_p": 0.9, "min_p": 0.01, "seed": 3}
    sampling |= {"repetition_penalty": 1.1, "presence_penalty": 0.2, "frequency_penalty": -0.3}
    sampling |= {"min_new_tokens": 2, "logprobs": 1}
    loading = {
        "generation_config": "none",
        "dtype": "bfloat16",
        "device": "cpu",
        "kernels": "torch",
        "num_threads": 1,
        "max_seq_len": 100,
        "graphs": "off",
    }
    options = [
        f"--{name.replace('_', '-')}={value}"
        for name, value in (sampling | loading | {"width": 2, "depth": 3}).items()
    ]
    result = run("generate", chat_model, "--prompt", "x", "--json", *SHORT, *options)
    assert result.exit_code == 0, result.output
    assert seen.pop("params") == SamplingParams(max_new_tokens=12, **sampling)  # type: ignore[arg-type]
    assert seen == {**loading, "drafter": PTDConfig(width=2, depth=3), "tensor_parallel": 1}


def test_logprobs_are_reported_a_token(run: Run, chat_model: str) -> None:
    result = run("generate", chat_model, "--prompt", "x", "--json", "--logprobs", 2, *SHORT)
    (line,) = json_lines(result)
    assert [entry["token_id"] for entry in line["logprobs"]] == line["token_ids"]
    for entry in line["logprobs"]:
        assert entry["top"][0]["logprob"] == entry["logprob"] < 0  # greedy
        assert len(entry["top"]) == 2
    assert "logprobs" not in json_lines(run("generate", chat_model, "--prompt", "x", "--json"))[0]
    refused = run("generate", chat_model, "--prompt", "x", "--logprobs", 2)
    assert refused.exit_code == 2 and "--logprobs=2" in refused.stderr


def test_a_bad_prompt_of_a_file_does_not_stop_the_others(
    run: Run, chat_model: str, write: Write
) -> None:
    rows = [{"id": "long", "prompt": "x" * CONTEXT}, {"id": "ok", "turns": ["Hello", "again"]}]
    path = write("set.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    result = run("generate", chat_model, "--prompts", path, "--json", *SHORT)
    assert result.exit_code == 1
    bad, good = json_lines(result)
    assert set(bad) == {"id", "error"}
    assert bad["id"] == "long" and f"max_seq_len={CONTEXT}" in bad["error"]
    assert good["id"] == "ok" and good["token_ids"]

    text = run("generate", chat_model, "--prompts", path, *SHORT)
    assert text.exit_code == 1
    assert text.stdout == f"--- long\n--- ok\n{good['text']}\n"
    assert "error: long: The prompt has" in text.stderr

    limited = run("generate", chat_model, "--prompts", path, "--limit", 1, "--json")
    assert [row["id"] for row in json_lines(limited)] == ["long"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "give --prompt TEXT, or --prompts FILE"),
        (("--prompt", "x", "--prompts", "y"), "contradict"),
        (("--prompts", "none.jsonl"), "not found: none.jsonl"),
        (("--prompt", "x", "--limit", "0"), "--limit=0 is not valid"),
        (("--prompt", "x", "--top-p", "0.5"), "top_p=0.5 is not valid"),
        (("--prompt", "x", "--temperature", "nan"), "temperature=nan is not valid"),
        (("--prompt", "x", "--max-new-tokens", "-1"), "max_new_tokens=-1 is not valid"),
        (("--prompt", "x", "--drafter", "none", "--width", "2"), "--width=2 is not valid"),
        (("--prompt", "x", "--drafter", "nope"), "drafter='nope' is not valid"),
        (("--prompt", "x", "--dtype", "int3"), "dtype='int3' is not valid"),
        (("--prompt", "x", "--device", "tpu"), "device='tpu' is not valid"),
        (("--prompt", "x", "--kernels", "nope"), "kernels='nope' is not valid"),
        (("--prompt", "x" * CONTEXT), "The prompt has"),
    ],
)
def test_mistakes_are_one_line_and_status_2(
    run: Run, chat_model: str, options: tuple[str, ...], said: str
) -> None:
    result = run("generate", chat_model, *options)
    assert result.exit_code == 2
    assert result.stdout.strip() == ""
    assert result.stderr.startswith("error: ") and said in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_model_that_is_not_there(run: Run, tmp_path: Path) -> None:
    result = run("generate", tmp_path / "no such model", "--prompt", "x")
    assert result.exit_code == 2
    assert "directory not found" in result.stderr


def test_ctrl_c_ends_with_status_130(
    run: Run, chat_model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(self: EagerRunner) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(EagerRunner, "wait", interrupt)
    result = run("generate", chat_model, "--prompt", "Hello")
    assert result.exit_code == 130
    assert "Traceback" not in result.output


def test_what_the_sources_were_good_for_goes_to_stderr(run: Run, chat_model: str) -> None:
    fixed = ("--drafter", "hybrid:auto_budget=false,max_candidate_nodes=5", *SHORT)
    plain = run("generate", chat_model, "--prompt", "Hello", *fixed)
    result = run("generate", chat_model, "--prompt", "Hello", "--stats", *fixed)
    assert result.exit_code == 0 and result.stdout == plain.stdout
    llm = LLM.from_pretrained(chat_model, drafter=fixed[1])
    llm.generate(
        llm.encode_chat([{"role": "user", "content": "Hello"}]), SamplingParams(max_new_tokens=12)
    )
    cells = [line.replace("│", " ").split() for line in result.stderr.splitlines()]
    for name, counts in llm.drafter.source_counts.items():
        assert [*name.split(), *map(str, counts)] in cells
    mean = sum(llm.drafter.budgets) / len(llm.drafter.budgets)
    assert f"({mean:.1f} a step on average)" in result.stderr
    assert "Nodes by source" not in plain.stderr


def test_only_hybrid_has_sources_to_show(run: Run, chat_model: str) -> None:
    for command in (("generate", chat_model, "--prompt", "Hello"), ("chat", chat_model)):
        result = run(*command, "--stats", "--drafter", "ptd")
        assert result.exit_code == 2 and "--drafter hybrid" in result.stderr
