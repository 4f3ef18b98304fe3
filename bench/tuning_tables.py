"""Markdown of the tuning page: what rows cost and give, and what a dtype of the weights does."""

from __future__ import annotations

from collections.abc import Sequence

from bench.renderers import Document, checked, machine, table


def render_budgets(documents: Sequence[Document]) -> str:
    """Speed-up by the budget of candidate rows, of a `hybrid` document, and the time of a step by
    its rows, of a `step` document.
    """
    hybrid, step = map(checked, documents)
    budgets = [v for v in hybrid["results"]["variants"] if v["kind"] == "budget"]
    steps = step["results"]["steps"]
    prompts = sum(one["prompts"] for one in hybrid["settings"]["prompt_sets"])
    return "\n\n".join(
        [
            table(
                ("candidate rows", *(budget["name"] for budget in budgets)),
                [
                    ["rows used", *(f"{b['total']['mean_rows']:.1f}" for b in budgets)],
                    ["speed-up", *(f"{b['total']['speedup']:.2f}x" for b in budgets)],
                ],
            ),
            table(
                ("rows of a step", *(str(one["rows"]) for one in steps)),
                [["ms", *(f"{one['ms']:.1f}" for one in steps)]],
            ),
            f"SmolLM2-135M-Instruct in {hybrid['settings']['dtype']}. Speed-up: `hybrid` against "
            f"plain decoding over {prompts} prompts, greedy, every output identical; by prompts in "
            f"[drafters.md](drafters.md). Steps: {step['settings']['dtype']}, prefix "
            f"{step['settings']['prefix'][0]}. {machine(hybrid)}.",
        ]
    )


def render_weights(documents: Sequence[Document]) -> str:
    """What a dtype takes, costs and keeps, of a `quality` document and `step` documents: one a
    dtype that was timed.
    """
    quality, *steps = map(checked, documents)
    one_row = {
        step["settings"]["dtype"]: next(s for s in step["results"]["steps"] if s["rows"] == 1)
        for step in steps
    }
    reference = quality["settings"]["reference"]
    rows = [
        [
            entry["dtype"],
            f"{entry['weight_bytes'] / 1e6:.0f}",
            f"{one_row[entry['dtype']]['ms']:.1f}" if entry["dtype"] in one_row else "",
            f"{entry['perplexity_ratio']:.3f}",
            f"{100 * entry['greedy_agreement']:.1f} %",
        ]
        for entry in quality["results"]["dtypes"]
    ]
    columns = (
        "`--dtype`",
        "weights, MB",
        "step of one row, ms",
        f"perplexity, of {reference}",
        f"same greedy token as {reference}",
    )
    return "\n\n".join(
        [
            table(columns, rows),
            f"SmolLM2-135M-Instruct; quality on {quality['settings']['tokens']} tokens of text, "
            f"steps at prefix {steps[0]['settings']['prefix'][0]}. {machine(steps[0])}.",
        ]
    )
