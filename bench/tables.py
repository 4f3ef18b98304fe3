"""Write the tables of README and docs from committed results: `python -m bench.tables`.

Nobody types a figure: the text between two markers is a rendering of JSON documents under
bench/results, and a test compares the two.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import hybrid_tables, renderers, serve_tables, simulate_tables, tuning_tables
from bench.renderers import Document

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"


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


BLOCKS = (
    Block("README.md", "decode", ["decode_cpu.json"], renderers.render_headline),
    Block("docs/drafters.md", "methods", ["paper/report.json"], renderers.render_methods),
    Block(
        "docs/drafters.md",
        "hybrid-budgets",
        ["hybrid/hybrid.json"],
        hybrid_tables.render_budgets,
    ),
    Block(
        "docs/drafters.md",
        "hybrid-sources",
        ["hybrid/hybrid.json"],
        hybrid_tables.render_sources,
    ),
    Block("docs/drafters.md", "hybrid-split", ["hybrid/hybrid.json"], hybrid_tables.render_split),
    Block(
        "docs/drafters.md",
        "hybrid-equal",
        ["hybrid/equal_rows.json"],
        hybrid_tables.render_equal_rows,
    ),
    Block(
        "docs/drafters.md",
        "hybrid-copy",
        ["hybrid/copy.json"],
        hybrid_tables.render_equal_rows,
    ),
    Block(
        "docs/drafters.md",
        "hybrid-sampled",
        [f"hybrid/sampled_{temperature}.json" for temperature in ("0.7", "1.0", "2.0")],
        hybrid_tables.render_sampled,
    ),
    Block("docs/cpu_tree.md", "trees", ["trees_cpu.json"], renderers.render_trees),
    Block("docs/cpu_tree.md", "step", ["step_bfloat16.json"], renderers.render_steps),
    Block(
        "docs/cpu_kernels.md",
        "step",
        ["step_bfloat16.json", "step_int8.json"],
        renderers.render_kernel_steps,
    ),
    Block(
        "docs/cpu_kernels.md",
        "peers",
        ["compare_bfloat16.json", "compare_int8.json"],
        renderers.render_peers,
    ),
    Block("docs/cpu_kernels.md", "quality", ["quality_cpu.json"], renderers.render_quality),
    Block(
        "docs/lossless.md",
        "verify",
        [
            "verify_bfloat16_greedy.json",
            "verify_int8_greedy.json",
            "verify_int8_sampled.json",
            "verify_bfloat16_sampled.json",
            "verify_float32_sampled.json",
        ],
        renderers.render_verified,
    ),
    Block(
        "docs/tuning.md",
        "budgets",
        ["hybrid/hybrid.json", "step_bfloat16.json"],
        tuning_tables.render_budgets,
    ),
    Block(
        "docs/tuning.md",
        "weights",
        ["quality_cpu.json", "step_bfloat16.json", "step_int8.json"],
        tuning_tables.render_weights,
    ),
    Block("docs/deployment.md", "load", ["serve_cpu.json"], serve_tables.render_load),
    *(
        Block("docs/simulate.md", name, [f"simulate/{file}.json" for file in files], render)
        for name, files, render in (
            ("curves", ["h200"], simulate_tables.render_curves),
            ("speeds", ["h200"], simulate_tables.render_speeds),
            ("gpus", ["gpus"], simulate_tables.render_gpus),
            ("ranks", ["ranks2", "ranks4", "ranks8"], simulate_tables.render_ranks),
            ("buckets", ["h200"], simulate_tables.render_buckets),
            ("check", ["check_cpu"], simulate_tables.render_check),
        )
    ),
    Block("docs/log.md", "resident", ["simulate/h200.json"], simulate_tables.render_resident),
)


def main() -> None:
    """Rewrite every block."""
    for block in BLOCKS:
        path = ROOT / block.path
        path.write_text(block.updated(path.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
