"""What a dtype costs in quality: perplexity, greedy agreement and divergence from a reference.

A fixed text goes through the engine's own forward pass, teacher-forced: every position sees the
true text before it. The same positions are compared between the dtypes, so a difference is the
weights' and the arithmetic's alone.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bench.common import positive
from bench.report import Document, make_table
from ptd_engine.errors import ConfigError, PromptError
from ptd_engine.kv_cache import KVCache
from ptd_engine.llm import LLM
from ptd_engine.model import CausalLM, ForwardBuffers
from ptd_engine.runner.eager import PREFILL_CHUNK

TEXT = Path(__file__).parent / "data" / "quality.txt"
_LOGIT_ROWS = 64  # bounds the fp64 copies of logits: 64 rows of 128k ids are 67 MB each


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this benchmark."""
    parser.add_argument("model", help='a directory, a .gguf file, a hub id, or "demo"')
    parser.add_argument(
        "--dtypes",
        type=_names,
        default=["bfloat16", "int8", "int4"],
        metavar="A,B,...",
        help="as in LLM.from_pretrained (default: bfloat16,int8,int4)",
    )
    parser.add_argument(
        "--reference", metavar="DTYPE", help="to compare with (default: the first of --dtypes)"
    )
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    parser.add_argument("--kernels", default="auto", help="auto or a backend's name")
    parser.add_argument("--threads", type=positive, help="of the CPU kernels; default: torch's")
    parser.add_argument("--text", type=Path, default=TEXT, metavar="FILE", help="UTF-8 text")
    parser.add_argument(
        "--limit", type=positive, metavar="N", help="use the text's first N tokens only"
    )


def run(args: argparse.Namespace) -> Document:
    """Measure. Raises PTDError for arguments that cannot be served."""
    reference = args.reference or args.dtypes[0]
    others = [dtype for dtype in args.dtypes if dtype != reference]
    text = _read(args.text)
    baseline: list[Seen] | None = None
    rows: list[dict[str, Any]] = []
    settings: dict[str, Any] = {}
    for dtype in [reference, *others]:  # one model at a time
        llm = LLM.from_pretrained(
            args.model,
            dtype=dtype,
            device=args.device,
            kernels=args.kernels,
            num_threads=args.threads,
            drafter="none",
        )
        token_ids = llm.encode(text)[: args.limit]
        if len(token_ids) < 2:
            raise PromptError.for_field("--text", args.text.name, "a text of at least two tokens")
        windows = split(token_ids, llm.engine.max_seq_len)
        score = Score(baseline)
        for window in windows:
            for logits, targets in teacher_forced(llm.model, window):
                score.add(logits, targets)
        if baseline is None:
            baseline = score.seen
            settings = {
                "model": Path(args.model).name if Path(args.model).exists() else args.model,
                "dtypes": args.dtypes,
                "reference": reference,
                "device": str(llm.model.device),
                "text": args.text.name,
                "tokens": len(token_ids),
                "windows": len(windows),
            }
        rows.append(
            {
                "dtype": dtype,
                "kernels": {c.op: c.backend for c in llm.model.ops.describe()},
                "weight_bytes": llm.model.weight_bytes,
                **score.result(),
            }
        )
        device = llm.model.device
        del llm
    return _document(settings, rows, device)


def split(token_ids: Sequence[int], length: int) -> list[list[int]]:
    """Cut a text into windows of at most `length` tokens, each read from its own beginning.

    A window begins with the last token of the one before, so that every token but the text's first
    is predicted exactly once.
    """
    starts = range(0, max(1, len(token_ids) - 1), length - 1)
    return [list(token_ids[start : start + length]) for start in starts]


@torch.inference_mode()
def teacher_forced(model: CausalLM, token_ids: Sequence[int]) -> Iterator[tuple[Tensor, list[int]]]:
    """Predict every token but the first from those before it.

    Args:
        model: any; its rotary table must cover the tokens.
        token_ids: at least two.

    Yields:
        (logits [M, V] float32 on the model's device, valid until the next ones; the M true next
        tokens), in order.
    """
    config, device = model.config, model.device
    inputs, targets = list(token_ids[:-1]), list(token_ids[1:])
    cache = KVCache(
        *(config.num_layers, config.num_kv_heads, len(inputs), config.head_dim),
        model.dtype,
        device,
    )
    chunk = min(PREFILL_CHUNK, len(inputs))
    buffers = ForwardBuffers.allocate(config, chunk, model.dtype, device)
    logits = torch.empty(_LOGIT_ROWS, config.vocab_size, dtype=model.logits_dtype, device=device)
    ids = torch.tensor(inputs, dtype=torch.int32, device=device)
    positions = torch.arange(len(inputs), dtype=torch.int32, device=device)
    model.rope.prepare(len(inputs))
    for start in range(0, len(inputs), chunk):
        end = min(start + chunk, len(inputs))
        hidden = model.forward(
            *(ids[start:end], positions[start:end], None),
            torch.tensor([start], dtype=torch.int32, device=device),
            *(end, cache, buffers),
            exact_bound=True,
        )
        for row in range(0, end - start, _LOGIT_ROWS):
            part = hidden[row : row + _LOGIT_ROWS]
            found = model.logits(part, logits[: len(part)]).float()
            first = start + row
            yield found, targets[first : first + len(part)]


@dataclass(frozen=True)
class Seen:
    """What a reference predicted at some positions.

    Attributes:
        log_probs: [M, V] float32 on the CPU.
        greedy: [M], the most likely tokens; from the logits, because rounding makes ties.
    """

    log_probs: Tensor
    greedy: Tensor


class Score:
    """Sums over the positions of a text, next to a reference's predictions there.

    Attributes:
        seen: what this model predicted, part by part; kept only where there is no reference,
            because this is the reference then.
    """

    def __init__(self, reference: Sequence[Seen] | None) -> None:
        """Begin; `reference` is the reference's `seen`, None makes this one the reference."""
        self.seen: list[Seen] = []
        self._reference = None if reference is None else iter(reference)
        self._positions = 0
        self._negative_log_likelihood = 0.0
        self._agreeing = 0
        self._divergence = 0.0

    def add(self, logits: Tensor, targets: Sequence[int]) -> None:
        """Count the next positions: logits [M, V] and the M true tokens."""
        log_probs = logits.double().log_softmax(-1)
        greedy = logits.max(-1).indices  # ties to the lowest id, as the engine's greedy choice
        wanted = torch.tensor(list(targets), device=logits.device).unsqueeze(-1)
        self._negative_log_likelihood -= float(log_probs.gather(-1, wanted).sum())
        self._positions += len(targets)
        if self._reference is None:
            self.seen.append(Seen(log_probs.float().cpu(), greedy.cpu()))
            self._agreeing += len(targets)
            return
        reference = next(self._reference)
        self._agreeing += int((reference.greedy == greedy.cpu()).sum())
        wide = reference.log_probs.to(logits.device).double()
        self._divergence += float((wide.exp() * (wide - log_probs)).sum())

    def result(self) -> dict[str, Any]:
        """The figures; `finite` alone where a logit was not finite."""
        mean = self._negative_log_likelihood / self._positions
        if not (math.isfinite(mean) and math.isfinite(self._divergence)):
            return {"finite": False}
        return {
            "finite": True,
            "positions": self._positions,
            "perplexity": math.exp(mean),
            "mean_nll": mean,
            "greedy_agreement": self._agreeing / self._positions,
            "mean_kl": self._divergence / self._positions,
        }


def _document(
    settings: dict[str, Any], rows: list[dict[str, Any]], device: torch.device
) -> Document:
    base = rows[0]
    for row in rows:
        if row["finite"] and base["finite"]:
            row["perplexity_ratio"] = row["perplexity"] / base["perplexity"]
    correct = all(row["finite"] for row in rows)
    title = (
        f"quality: {settings['model']}, {settings['device']}, {settings['text']} of "
        f"{settings['tokens']} tokens, teacher-forced; agreement (greedy) and KL (nats): with "
        f"{settings['reference']}"
    )
    columns = ("dtype", "weights, MB", "perplexity", "ratio", "greedy agreement", "mean KL")
    return Document(
        "quality",
        correct=correct,
        settings=settings,
        results={"dtypes": rows},
        tables=[make_table(title, columns, [_table_row(row) for row in rows])],
        notes=[f"{r['dtype']}: a logit is not finite" for r in rows if not r["finite"]],
        device=device,
    )


def _table_row(row: Mapping[str, Any]) -> list[str]:
    size = f"{row['weight_bytes'] / 1e6:.1f}"
    if "perplexity_ratio" not in row:
        return [row["dtype"], size, "not comparable", "", "", ""]
    return [
        row["dtype"],
        size,
        f"{row['perplexity']:.4f}",
        f"{row['perplexity_ratio']:.4f}",
        f"{100 * row['greedy_agreement']:.2f}%",
        f"{row['mean_kl']:.2e}",
    ]


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError.for_field("--text", str(path), f"a UTF-8 text file ({error})") from error


def _names(text: str) -> list[str]:
    names = [part.strip() for part in text.split(",")]
    if not all(names):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of dtypes like bfloat16,int8")
    return list(dict.fromkeys(names))
