"""A Hugging Face model directory: config.json and one or several safetensors files."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ptd_engine.checkpoint.json_file import read_json
from ptd_engine.checkpoint.memory import is_out_of_memory, out_of_memory
from ptd_engine.checkpoint.unsupported import other_weights, refuse_adapter, refuse_quantised
from ptd_engine.errors import CheckpointError

_log = logging.getLogger(__name__)

_MOST_NAME = 200  # characters of a file's name
_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


class SafetensorsCheckpoint:
    """Reads the files that the index names, and no others.

    A stray consolidated.safetensors beside them is not looked at. A tensor that the index forgets,
    in a file that it names, is offered like the others: the model has a place for it or refuses it.

    Implements the `Checkpoint` protocol.
    """

    def __init__(self, path: Path) -> None:
        """Open the directory and the header of every file.

        Raises:
            CheckpointError: see `checkpoint.open_checkpoint`; each missing or damaged file is
                named.
        """
        self._path = path
        refuse_adapter(path)
        single, index = (path / _SINGLE).is_file(), (path / _INDEX).is_file()
        if not (single or index) and (error := other_weights(path)):
            raise error
        self._config = read_json(path / "config.json", required=True)
        # Before the files are opened: a quantiser may have given them names of its own.
        refuse_quantised(path, self._config, ())
        self._generation_config = read_json(path / "generation_config.json", required=False)
        self._files: dict[str, Any] = {}
        self._file_of: dict[str, str] = {}
        self._indexed: dict[str, str] | None = None
        self._choice = ""  # which of two models in the directory is loaded, as a sentence
        for name in self._file_names():
            self._open(name)
        if not self._file_of:
            raise CheckpointError(f"{path} holds no tensors: the download is incomplete.")
        refuse_quantised(path, {}, self._file_of)

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
        return self._read(name, lambda file: file.get_tensor(name))

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor, of which nothing is read."""
        return tuple(self._files[self._file_of[name]].get_slice(name).get_shape())

    def part(self, name: str, dim: int, start: int, stop: int) -> Tensor:
        """Read entries start to stop of dimension `dim`, 0 or 1, of a tensor, and no others.

        Raises:
            CheckpointError: as for `tensor`.
        """
        wanted = (slice(None),) * dim + (slice(start, stop),)
        return self._read(name, lambda file: file.get_slice(name)[wanted])

    def _read(self, name: str, read: Callable[[Any], Tensor]) -> Tensor:
        file_name = self._file_of[name]
        try:
            tensor = read(self._files[file_name])
        except (SafetensorError, OSError, MemoryError) as error:
            if is_out_of_memory(error):
                raise out_of_memory(self._path / file_name) from error
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
        has_single = (self._path / _SINGLE).is_file()
        if not index_path.is_file():
            if has_single:
                return [_SINGLE]
            others = sorted(p.name for p in self._path.glob("*.safetensors"))
            found = f" (found {', '.join(others)}, which no index names)" if others else ""
            raise CheckpointError(
                f"{self._path} has neither {_SINGLE} nor {_INDEX}{found}: incomplete download?"
            )
        weight_map = read_json(index_path, required=True).get("weight_map")
        if not isinstance(weight_map, dict):
            raise CheckpointError(f"{index_path} has no weight_map: the file is damaged.")
        self._indexed = {str(tensor): str(file) for tensor, file in weight_map.items()}
        files = sorted(set(self._indexed.values()))
        for name in files:
            _check_plain(name, index_path)
        if has_single and _SINGLE not in files:
            self._choice = (
                f" {self._path} holds both {_SINGLE} and {_INDEX}: the files that the index names "
                f"are loaded. If {_SINGLE} is the whole model, remove the index."
            )
            _log.warning("%s", self._choice.strip())
        return files

    def _open(self, file_name: str) -> None:
        path = self._path / file_name
        if not path.is_file():
            raise CheckpointError(
                f"{path} is named by {_INDEX} but is not there: incomplete download?{self._choice}"
            )
        try:
            opened: Any = safe_open(path, framework="pt", device="cpu")
        except (SafetensorError, OSError, MemoryError) as error:
            if is_out_of_memory(error):
                raise out_of_memory(path) from error
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
            forgotten = [name for name in present if name not in self._indexed]
            if twice := sorted(self._file_of.keys() & forgotten):
                raise CheckpointError(
                    f"{path} and {self._file_of[twice[0]]} both hold {twice[0]}, which {_INDEX} "
                    "does not list: files of two versions."
                )
            present = [*promised, *forgotten]
        self._file_of.update(dict.fromkeys(present, file_name))


def _check_plain(name: str, index_path: Path) -> None:
    """Refuse what is no name of a file beside the index: it would open one somewhere else."""
    if (
        not name.endswith(".safetensors")
        or len(name) > _MOST_NAME
        or not name.isprintable()
        or "/" in name
        or "\\" in name
    ):
        raise CheckpointError.for_field(
            f"a file in {index_path}",
            name,
            f"the plain name of a .safetensors file beside it, of at most {_MOST_NAME} characters",
            "The index is damaged.",
        )
