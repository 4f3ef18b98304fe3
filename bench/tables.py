"""Write the tables of README and docs from committed results: `python -m bench.tables`.

Nobody types a figure: the text between two markers is a rendering of JSON documents under
bench/results, and a test compares the two.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"

_LABELS = {
    "mt_bench": "MT-Bench",
    "gsm8k_100": "GSM8K",
    "humaneval": "HumanEval",
    "mbpp_100": "MBPP",
}
Document = Mapping[str, Any]


@dataclass(frozen=True)
class Block:
    """A marked part of a Markdown file, and what it shows.

    Attributes:
        path: of the file, below the repository.
        marker: the part lies between <!-- bench:MARKER --> and <!-- /bench:MARKER -->.
        results: names of the documents below bench/results.
        render: documents -> Markdown.
    """

    path: str
    marker: str
    results: Sequence[str]
    render: Callable[[Sequence[Document]], str]

    def updated(self, text: str) -> str:
        """`text` with the part between the markers replaced."""
        begin, end = f"<!-- bench:{self.marker} -->", f"<!-- /bench:{self.marker} -->"
        head, rest = text.split(begin)
        _, tail = rest.split(end)
        documents = [json.loads((RESULTS / name).read_text("utf-8")) for name in self.results]
        return f"{head}{begin}\n{self.render(documents)}\n{end}{tail}"


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _machine(document: Document) -> str:
    machine = document["machine"]
    return (
        f"{machine['cpu']}, {machine['torch_threads']} threads, "
        f"torch {document['versions']['torch']}"
    )


def _checked(document: Document) -> Document:
    if not document["correct"]:
        raise ValueError("the document holds outputs that differ from plain decoding")
    return document


def render_headline(documents: Sequence[Document]) -> str:
    """The first drafter of a `decode` document by prompt set, with its conditions."""
    document = _checked(documents[0])
    settings = document["settings"]
    rows = []
    for entry in document["results"]["sets"]:
        plain, drafted = entry["plain"], entry["drafters"][0]
        name = entry["prompt_set"]
        rows.append(
            [
                f"{'**all**' if name == 'total' else _LABELS.get(name, name)} ({entry['prompts']})",
                f"{plain['tokens_per_second']:.1f}",
                f"{drafted['tokens_per_second']:.1f}",
                f"{drafted['speedup']:.2f}x",
                f"{drafted['decoding_efficiency']:.2f}",
            ]
        )
    columns = ("prompts", "plain, tokens/s", "PTD, tokens/s", "speed-up", "tokens a step")
    drafter = document["results"]["sets"][0]["drafters"][0]["drafter"]
    return "\n\n".join(
        [
            _table(columns, rows),
            f"SmolLM2-135M-Instruct in {settings['dtype']}, greedy, first turns through the chat "
            f"template, at most {settings['max_new_tokens']} tokens, prefill included; drafter "
            f"`{drafter}` against plain decoding with the same kernels, alternating in one run, "
            f"median of {settings['repeats']}; every output compared and identical. "
            f"{_machine(document)}.",
        ]
    )


def render_trees(documents: Sequence[Document]) -> str:
    """Tokens a step of several trees, set against the measured cost of their rows.

    Documents: the counts of each tree, and a `step` document; the cost at a mean number of rows is
    interpolated between the measured sizes.
    """
    trees, steps = _checked(documents[0]), _checked(documents[1])
    costs = {s["rows"]: s["ratio_to_one_row"] for s in steps["results"]["steps"]}
    rows = []
    for tree in trees["results"]["drafters"]:
        mean_rows = 1 + tree["mean_draft_nodes"] + tree["mean_candidate_nodes"]
        cost = _interpolate(costs, mean_rows)
        rows.append(
            [
                f"`{tree['drafter']}`",
                f"{tree['decoding_efficiency']:.2f}",
                f"{tree['hit_rate']:.2f}",
                f"{tree['mean_draft_nodes']:.1f}",
                f"{tree['mean_candidate_nodes']:.1f}",
                f"{cost:.2f}",
                f"{tree['decoding_efficiency'] / cost:.2f}",
            ]
        )
    columns = ("drafter", "DE", "HR", "Dft", "Ver", "cost of its mean rows", "DE / cost")
    settings = trees["settings"]
    return "\n\n".join(
        [
            _table(columns, rows),
            f"{trees['results']['prompts']} prompts (4 of each set), {settings['dtype']}, greedy, "
            f"at most {settings['max_new_tokens']} tokens, every output identical to plain "
            "decoding. "
            "The last two columns are computed from the table of step costs, not timed.",
        ]
    )


def _interpolate(points: Mapping[int, float], at: float) -> float:
    sizes = sorted(points)
    for low, high in itertools.pairwise(sizes):
        if low <= at <= high:
            share = (at - low) / (high - low)
            return points[low] + share * (points[high] - points[low])
    raise ValueError(f"{at} rows lie outside the measured sizes {sizes}")


def render_steps(documents: Sequence[Document]) -> str:
    """The cost of a step by rows, from a `step` document."""
    document = _checked(documents[0])
    rows = [
        [str(r["rows"]), f"{r['ms']:.1f}", f"{r['ratio_to_one_row']:.2f}"]
        for r in document["results"]["steps"]
    ]
    settings = document["settings"]
    return "\n\n".join(
        [
            _table(("rows", "ms", "of one row"), rows),
            f"{settings['dtype']}, prefix {settings['prefix'][0]}, forward and select, median. "
            f"{_machine(document)}.",
        ]
    )


def render_verified(documents: Sequence[Document]) -> str:
    """One row a `ptd-engine verify` document."""
    rows = [
        [
            d["dtype"],
            "greedy" if d["temperature"] == 0 else f"temperature {d['temperature']:g}",
            str(d["prompts"]),
            str(d["tokens"]),
            str(d["mismatches"]),
            f"{d['decoding_efficiency']:.2f}",
            f"{d['hit_rate']:.2f}",
            f"{d['accept_length']:.2f}",
            f"{d['mean_draft_nodes']:.1f}",
            f"{d['mean_candidate_nodes']:.1f}",
        ]
        for d in documents
    ]
    columns = (
        "dtype",
        "decoding",
        "prompts",
        "tokens",
        "mismatches",
        "DE",
        "HR",
        "AL",
        "Dft",
        "Ver",
    )
    return _table(columns, rows)


BLOCKS = (
    Block("README.md", "decode", ["decode_cpu.json"], render_headline),
    Block("docs/cpu_tree.md", "trees", ["trees_cpu.json", "step_cpu.json"], render_trees),
    Block("docs/cpu_tree.md", "step", ["step_cpu.json"], render_steps),
    Block(
        "docs/lossless.md",
        "verify",
        ["verify_greedy.json", "verify_sampled.json"],
        render_verified,
    ),
)


def main() -> None:
    """Rewrite every block."""
    for block in BLOCKS:
        path = ROOT / block.path
        path.write_text(block.updated(path.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
