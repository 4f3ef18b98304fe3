"""What the benchmarks share: arguments, prompts, timing."""

from __future__ import annotations

import argparse
import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from bench import own_drafter
from bench.prompt_sets import add_prompt_set_arguments
from ptd_engine.drafters import DrafterConfig, DrafterSpec, resolve

if TYPE_CHECKING:
    from ptd_engine.llm import LLM
    from ptd_engine.model import CausalLM
    from ptd_engine.runner import Runner


@dataclass(frozen=True)
class DrafterChoice:
    """A drafter as asked for on the command line, and what it means on the device.

    Attributes:
        label: the argument, as written.
        spec: a name or a configuration, with "ptd" resolved; an object of a file's class.
    """

    label: str
    spec: DrafterSpec

    def as_json(self) -> Any:
        """Its settings; of a file's class what tells one text of the file from another."""
        if isinstance(self.spec, DrafterConfig):
            return asdict(self.spec)
        return self.spec if isinstance(self.spec, str) else own_drafter.fingerprint(self.label)


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """MODEL, --dtype, --device and --kernels, as in `LLM.from_pretrained`."""
    parser.add_argument("model", help='a directory, a .gguf file, a hub id, or "demo"')
    parser.add_argument(
        "--dtype", default="auto", help="auto, float32, bfloat16, float16, int8 or int4"
    )
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    parser.add_argument("--kernels", default="auto", help="auto or a backend's name")
    parser.add_argument("--threads", type=positive, help="of the CPU kernels; default: torch's")


def add_prompt_arguments(parser: argparse.ArgumentParser) -> None:
    """What to generate from, how much, and how often: --prompts or --data, --limit, --raw, ..."""
    add_prompt_set_arguments(parser)
    parser.add_argument("--raw", action="store_true", help="no chat template")
    parser.add_argument("--max-new-tokens", type=positive, default=128, metavar="N")
    parser.add_argument("--repeats", type=positive, default=3, metavar="R")


def load_plain(args: argparse.Namespace) -> LLM:
    """The model that `add_model_arguments` asks for, without a drafter; what decides how it decodes
    are the command line's settings alone.
    """
    from ptd_engine.llm import LLM

    return LLM.from_pretrained(
        args.model,
        dtype=args.dtype,
        device=args.device,
        kernels=args.kernels,
        num_threads=args.threads,
        drafter="none",
        generation_config="none",
    )


def model_settings(args: argparse.Namespace, model: CausalLM) -> dict[str, Any]:
    """What `add_model_arguments` asked for and what came of it; a path loses its folders."""
    is_path = Path(args.model).exists()
    return {
        "model": Path(args.model).name if is_path else args.model,
        "dtype": model.precision,
        "device": str(model.device),
        "threads": args.threads or torch.get_num_threads(),
        "kernels": {choice.op: choice.backend for choice in model.ops.describe()},
    }


def choose_drafters(labels: Sequence[str], device_type: str) -> list[DrafterChoice]:
    """Parse drafter arguments, each once.

    Raises:
        ConfigError: an unknown name or a bad option.
    """

    def meant(label: str) -> DrafterSpec:
        own = label.startswith(own_drafter.PREFIX)
        return own_drafter.load(label) if own else resolve(label, device_type)

    return [DrafterChoice(label, meant(label)) for label in dict.fromkeys(labels)]


def integers(text: str) -> list[int]:
    """An argument "1,2,4": ascending positive integers, each once."""
    try:
        values = sorted({int(part) for part in text.split(",")})
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of integers like 1,2,4") from error
    if values[0] < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: every number must be at least 1")
    return values


def positive(text: str) -> int:
    """An argument that is an integer >= 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no integer >= 1")
    return int(text)


@contextmanager
def collector_off() -> Iterator[None]:
    """No garbage is collected within the timed region."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def top2_gap(runner: Runner) -> float | None:
    """Difference of the two largest logits of the last step's root: a tiny one is a near-tie, which
    rounding decides. None where the runner does not tell.
    """
    read = getattr(runner, "top2_gap", None)
    return None if read is None else float(read(0))


def ratio(numerator: float, denominator: float) -> float:
    """0 where nothing was measured, so that no document holds NaN."""
    return numerator / denominator if denominator else 0.0
