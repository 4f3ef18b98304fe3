"""A Hugging Face model directory: config.json and one or several safetensors files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ptd_engine.errors import CheckpointError

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


class SafetensorsCheckpoint:
    """Reads the files that the index names, and no others.

    A stray consolidated.safetensors beside them is not looked at.

    Implements the `Checkpoint` protocol.
    """

    def __init__(self, path: Path) -> None:
        """Open the directory and the header of every file.

        Raises:
            CheckpointError: see `checkpoint.open_checkpoint`; each missing or damaged file is
                named.
        """
        self._path = path
        # Also beside a whole model: the weights alone would answer without the adapter.
        if (path / "adapter_config.json").exists():
            raise CheckpointError(
                f"{path} holds a LoRA adapter (adapter_config.json): merge first (peft's "
                "merge_and_unload, then save_pretrained) and give the directory of the merged "
                "model. If it is merged already, remove adapter_config.json."
            )
        self._config = _read_json(path / "config.json", required=True)
        self._generation_config = _read_json(path / "generation_config.json", required=False)
        self._files: dict[str, Any] = {}
        self._file_of: dict[str, str] = {}
        self._indexed: dict[str, str] | None = None
        for name in self._file_names():
            self._open(name)
        if not self._file_of:
            raise CheckpointError(f"{path} holds no tensors: the download is incomplete.")

    @property
    def config(self) -> dict[str, Any]:
        """config.json."""
        return self._config

    @property
    def generation_config(self) -> dict[str, Any]:
        """generation_config.json, or empty."""
        return self._generation_config

    @property
    def dtype_name(self) -> str | None:
        """The config's `dtype` (or `torch_dtype`), else the dtype of the first weight."""
        named = self._config.get("dtype") or self._config.get("torch_dtype")
        if named is not None and named != "auto":
            return str(named).removeprefix("torch.")
        first = next(iter(self._file_of))
        return str(self.tensor(first).dtype).removeprefix("torch.")

    def names(self) -> list[str]:
        """See `Checkpoint.names`."""
        return list(self._file_of)

    def tensor(self, name: str) -> Tensor:
        """See `Checkpoint.tensor`."""
        file_name = self._file_of[name]
        try:
            tensor: Tensor = self._files[file_name].get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(
                f"cannot read {name} from {self._path / file_name}: {error}"
            ) from error
        if tensor.dtype not in _FLOATS:
            raise CheckpointError.for_field(
                f"dtype of {name}",
                str(tensor.dtype).removeprefix("torch."),
                "float32, bfloat16 or float16",
                "Quantised safetensors are not supported; use the unquantised model or a GGUF "
                "file.",
            )
        return tensor

    def _file_names(self) -> list[str]:
        index_path = self._path / _INDEX
        if not index_path.exists():
            if (self._path / _SINGLE).exists():
                return [_SINGLE]
            raise self._no_weights()
        weight_map = _read_json(index_path, required=True).get("weight_map")
        if not isinstance(weight_map, dict):
            raise CheckpointError(f"{index_path} has no weight_map: the file is damaged.")
        self._indexed = {str(tensor): str(file) for tensor, file in weight_map.items()}
        return sorted(set(self._indexed.values()))

    def _no_weights(self) -> CheckpointError:
        pickled = sorted(p.name for p in self._path.glob("*.bin"))
        if pickled:
            return CheckpointError(
                f"{self._path} holds only pickled weights ({pickled[0]}), which can run code when "
                "read. Convert once: "
                "AutoModelForCausalLM.from_pretrained(dir).save_pretrained(new_dir) in "
                "transformers "
                "writes safetensors."
            )
        others = sorted(p.name for p in self._path.glob("*.safetensors"))
        found = f" (found {', '.join(others)}, which no index names)" if others else ""
        return CheckpointError(
            f"{self._path} has neither {_SINGLE} nor {_INDEX}{found}: incomplete download?"
        )

    def _open(self, file_name: str) -> None:
        path = self._path / file_name
        if not path.is_file():
            raise CheckpointError(
                f"{path} is named by {_INDEX} but is not there: incomplete download?"
            )
        try:
            opened: Any = safe_open(path, framework="pt", device="cpu")
        except (SafetensorError, OSError) as error:
            raise CheckpointError(
                f"{path} is not a whole safetensors file ({error}): incomplete download?"
            ) from error
        self._files[file_name] = opened
        present = [str(name) for name in opened.keys()]  # noqa: SIM118 (not a dict)
        if self._indexed is not None:
            promised = [tensor for tensor, file in self._indexed.items() if file == file_name]
            absent = sorted(set(promised) - set(present))
            if absent:
                raise CheckpointError(
                    f"{path} lacks {absent[0]}, which {_INDEX} places there "
                    f"({len(absent)} in all): incomplete download, or files of two versions."
                )
            present = promised
        self._file_of.update(dict.fromkeys(present, file_name))


def _read_json(path: Path, *, required: bool) -> dict[str, Any]:
    if not path.is_file():
        if required:
            raise CheckpointError(
                f"{path} is missing: not a model directory, or incomplete download."
            )
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # ValueError: also an integer of 5000 digits
        raise CheckpointError(
            f"{path} is not valid JSON ({error}): incomplete download?"
        ) from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} holds no JSON object.")
    return content
