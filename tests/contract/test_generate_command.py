"""`ptd-engine generate --stop`, and end ids from every file of a real (tiny) model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli.conftest import TEMPLATE, save_model
from typer.testing import CliRunner, Result

from ptd_engine import LLM, SamplingParams
from ptd_engine.cli import create_app

PARAMS = SamplingParams(max_new_tokens=40)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("model") / "m", TEMPLATE)


def run(*args: object) -> Result:
    return CliRunner().invoke(create_app(), ["generate", *map(str, args)])


def test_stop_strings_of_the_command_line(model: Path) -> None:
    options = (model, "--raw", "--prompt", "Hello", "--json", "--max-new-tokens", 40)
    free = json.loads(run(*options).stdout)["text"]
    stops = [free[3:5], free[9:14]]
    begin = min(free.find(stop) for stop in stops)
    for drafter in ("ptd", "none"):
        result = run(*options, "--drafter", drafter, "--stop", stops[0], "--stop", stops[1])
        got = json.loads(result.stdout)
        assert (got["text"], got["finish_reason"]) == (free[:begin], "stop")
        assert got["usage"]["completion_tokens"] == len(got["token_ids"]) < 40


def test_an_empty_stop_string_is_refused(model: Path) -> None:
    result = run(model, "--prompt", "Hello", "--stop", "")
    assert result.exit_code == 2
    assert "stop[0]='' is not valid" in result.stderr


@pytest.mark.parametrize("source", ["config", "config list", "generation_config", "tokenizer"])
def test_an_end_id_stops_whichever_file_names_it(
    source: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = save_model(tmp_path_factory.mktemp(source.replace(" ", "_")) / "m", None)
    free = LLM.from_pretrained(str(path)).generate("Hello", PARAMS).token_ids
    end = free[10]

    def edit(name: str, **changes: object) -> None:
        file = path / name
        old = json.loads(file.read_text()) if file.exists() else {}
        file.write_text(json.dumps(old | changes))

    if source == "config":
        edit("config.json", eos_token_id=end)
    elif source == "config list":
        edit("config.json", eos_token_id=[1, end])
    elif source == "generation_config":
        edit("generation_config.json", eos_token_id=[1, end])
    else:
        tokenizer = json.loads((path / "tokenizer.json").read_text())["model"]["vocab"]
        edit("tokenizer_config.json", eos_token=next(t for t, i in tokenizer.items() if i == end))
    for drafter in ("ptd", "none"):
        output = LLM.from_pretrained(str(path), drafter=drafter).generate("Hello", PARAMS)
        assert output.token_ids == free[: free.index(end) + 1]
        assert output.finish_reason == "stop"
