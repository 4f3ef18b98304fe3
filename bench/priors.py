"""What the hybrid drafter believes before it has seen anything: csrc/core/acceptance_priors.h.

    python -m bench.priors MODEL --data DIR --out csrc/core/acceptance_priors.h

Decodes some prompts of every file in DIR, several times over, with one drafter that keeps what it
learns, beginning from neutral values; then writes its state as a C++ table.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path

from bench.common import positive
from bench.prompt_sets import from_folder
from ptd_engine import _core
from ptd_engine.config import SamplingParams
from ptd_engine.llm import LLM

_LINE = 99
_HEAD = """// What AcceptanceModel begins with: learned on {prompts} chat prompts
// ({sets}), model "{model}", greedy, {passes} passes.
// Written by bench/priors.py.
#pragma once

namespace ptd {{

// clang-format off
inline constexpr float kAcceptancePriors[] = {{
"""
_TAIL = """
};
// clang-format on

}  // namespace ptd
"""


def neutral_state(
    length: int, *, sources: int = 7, buckets: int = 96, absent: int = 4
) -> list[float]:
    """Every bucket the same, equal weights, no calibration; see AcceptanceModel::state."""
    values: list[float] = []
    for index in range(sources * buckets):
        values += [0.05 if index % buckets >= buckets - absent else 0.2, 4.0]
    knots = 17
    sets = (length - len(values) - knots) // (sources + 1)
    values += ([0.4] * sources + [0.0]) * sets
    values += [(k / (knots - 1)) ** 2 for k in range(knots)]
    return values


def table(values: Iterable[float]) -> str:
    """The numbers as lines of a C++ initialiser."""
    lines, line = [], "   "
    for value in values:
        text = f"{value:.4g}"
        word = f" {text if '.' in text or 'e' in text else text + '.0'}f,"
        if len(line) + len(word) > _LINE:
            lines.append(line)
            line = "   "
        line += word
    return "\n".join([*lines, line]).rstrip(",")


def main(argv: Sequence[str] | None = None) -> None:
    """Learn and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--data", type=Path, required=True, help="a folder of prompt files")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--limit", type=positive, default=16, help="prompts of each file")
    parser.add_argument("--passes", type=positive, default=3)
    parser.add_argument("--max-new-tokens", type=positive, default=128)
    parser.add_argument("--dtype", default="bfloat16")
    args = parser.parse_args(argv)
    drafter = _core.HybridDrafter(keep_statistics=True)
    drafter.load_acceptance_state(neutral_state(len(drafter.acceptance_state)))
    llm = LLM.from_pretrained(
        args.model, dtype=args.dtype, drafter=drafter, generation_config="none"
    )
    sets = from_folder(args.data)
    chosen = []
    for one in sets:
        # Behind the beginning of each part, so that other benchmarks' prompts stay unseen.
        step = len(one.items) // args.limit
        chosen += [one.items[3 + i * step] for i in range(args.limit)]
    params = SamplingParams(max_new_tokens=args.max_new_tokens)
    for _ in range(args.passes):
        for item in chosen:
            llm.chat([{"role": "user", "content": item.text}], params)
    head = _HEAD.format(
        prompts=len(chosen),
        sets=", ".join(one.name for one in sets),
        model=args.model,
        passes=args.passes,
    )
    args.out.write_text(head + table(drafter.acceptance_state) + _TAIL, encoding="utf-8")


if __name__ == "__main__":
    main()
