"""Markdown tables of `simulate` and `simulate_check` documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bench.renderers import Document, checked, machine, table

_NOT_MEASURED = "**Predicted, not measured**"
_ROWS = (1, 8, 16, 32, 64, 128)


def render_curves(documents: Sequence[Document]) -> str:
    """Milliseconds of a step by rows and prefix, of every model."""
    document = checked(documents[0])
    rows = []
    for found in document["results"]["predictions"]:
        curve = {(c["rows"], c["prefix"]): c for c in found["curve"]}
        for prefix in dict.fromkeys(c["prefix"] for c in found["curve"]):
            cells = [
                f"{curve[1, prefix]['ms']:.2f}",
                *(f"{curve[n, prefix]['to_one_row']:.2f}" for n in _ROWS[1:]),
            ]
            rows.append([found["model"], f"{prefix:,}", *cells])
    columns = ("model", "prefix", "ms, 1 row", *(f"{n} rows" for n in _ROWS[1:]))
    return f"{table(columns, rows)}\n\n{_conditions(document)} Rows: times that of one row."


def render_speeds(documents: Sequence[Document]) -> str:
    """Tokens a second by drafter, one column a model and prefix."""
    document = checked(documents[0])
    columns = ["drafter", "rows", "tokens a step", "host, us"]
    speeds: dict[tuple[str, Any, float], list[str]] = {}
    for found in document["results"]["predictions"]:
        for prefix in (512, 8192):
            columns.append(f"{found['model']}, {prefix:,}")
            for d in [d for d in found["drafters"] if d["prefix"] == prefix]:
                cell = f"{d['tokens_per_second']:.0f} ({d['speedup']:.2f}x)"
                speeds.setdefault((d["drafter"], d["budget"], d["rows"]), _head(d)).append(cell)
    return (
        f"{table(columns, list(speeds.values()))}\n\n{_conditions(document)} Tokens a second "
        "behind a prefix, and their ratio to plain decoding. Tokens and rows a step are measured, "
        "of SmolLM2-135M-Instruct (`bench/results/paper/report.json`, `hybrid/hybrid.json`): "
        "another model accepts more or less."
    )


def _head(drafted: Mapping[str, Any]) -> list[str]:
    label = f"`{drafted['drafter']}`"
    if drafted["budget"] is not None:
        label += f", {drafted['budget']} candidates"
    return [
        label,
        f"{drafted['rows']:.1f}",
        f"{drafted['tokens_a_step']:.2f}",
        f"{drafted['host_us']:.0f}",
    ]


def render_gpus(documents: Sequence[Document]) -> str:
    """One model on every GPU: plain, and the hybrid drafter at 64 candidates."""
    document = checked(documents[0])
    devices = document["settings"]["gpus"]
    rows = []
    for found in document["results"]["predictions"]:
        device = devices[found["gpu"]]
        head = [
            found["device"],
            f"{device['bandwidth_gb_s']:,.0f}",
            f"{device['tflops']:,.0f}",
        ]
        rows.append([*head, *_pair(found)])
    columns = ("GPU", "GB/s", "TFLOP/s, bf16", "plain", "`hybrid`, 64 candidates", "64 rows to 1")
    sources = "; ".join(dict.fromkeys(device["source"] for device in devices.values()))
    return f"{table(columns, rows)}\n\n{_conditions(document)} Bandwidth and arithmetic: {sources}."


def render_ranks(documents: Sequence[Document]) -> str:
    """Tensor parallelism: a document each."""
    rows = []
    for document in map(checked, documents):
        found = document["results"]["predictions"][0]
        parts = next(c for c in found["curve"] if c["rows"] == 1)["parts_us"]
        spent = [f"{parts[name]:.0f}" for name in ("weights", "launches", "sums", "host")]
        rows.append([str(found["ranks"]), *_pair(found)[:2], *spent])
    columns = ("ranks", "plain", "`hybrid`, 64 candidates", *("weights, us", "launches, us"))
    more = ("sums, us", "host, us")
    return f"{table((*columns, *more), rows)}\n\n{_conditions(documents[-1])} Parts: of one row."


def _pair(found: Mapping[str, Any]) -> list[str]:
    plain = next(d for d in found["drafters"] if d["drafter"] == "none")
    hybrid = next(d for d in found["drafters"] if d["budget"] == 64)
    curve = {c["rows"]: c for c in found["curve"] if c["prefix"] == plain["prefix"]}
    return [
        f"{plain['tokens_per_second']:.0f}",
        f"{hybrid['tokens_per_second']:.0f} ({hybrid['speedup']:.2f}x)",
        f"{curve[64]['to_one_row']:.2f}",
    ]


def render_buckets(documents: Sequence[Document]) -> str:
    """Node and kv buckets of the first model and their waste."""
    document = checked(documents[0])
    found = document["results"]["predictions"][0]
    buckets = found["buckets"]
    rows = [
        [
            f"node, {name}",
            ", ".join(map(str, buckets[name]["node_buckets"])),
            f"{100 * buckets[name]['padded_rows']:.1f} %",
            f"{100 * buckets[name]['extra_time']:.2f} %",
        ]
        for name in ("chosen", "default", "one")
    ]
    rows += [
        [
            f"kv, {name}, context {kv['max_seq_len']:,}",
            ", ".join(f"{bound:,}" for bound in kv[name]["kv_buckets"]),
            "",
            f"{100 * kv[name]['extra_time']:.2f} %",
        ]
        for kv in found["kv_buckets"]
        for name in ("chosen", "default", "one")
    ]
    return "\n\n".join(
        [
            table(("buckets", "sizes", "padding among the rows", "more time"), rows),
            f"{_conditions(document)} Costs of {found['model']}, {buckets['costs']}. Rows as the "
            f"hybrid drafter asked for them in {buckets['steps']} steps of SmolLM2-135M-Instruct "
            f"with these costs (mean {buckets['mean_rows']:.1f}); prefixes: every length as often "
            "as any other.",
        ]
    )


def render_resident(documents: Sequence[Document]) -> str:
    """The loop that stays on the device against the host's."""
    document = checked(documents[0])
    rows = []
    for found in document["results"]["predictions"]:
        best = found["resident"]["best_by_host"]
        rows += [
            [
                found["model"],
                f"`{r['drafter']}`",
                str(r["steps_without_host"]),
                f"{r['host_tokens_per_second']:.0f}",
                f"{r['resident_tokens_per_second']:.0f}",
                f"{100 * r['gain']:+.1f} %",
                f"{best['tokens_per_second']:.0f}",
            ]
            for r in found["resident"]["rows"]
            if r["steps_without_host"] in (2, 8)
        ]
    columns = (
        *("model", "drafter", "steps without the host", "host's loop", "device's loop", "gain"),
        "`hybrid`, host's loop",
    )
    resident = document["results"]["predictions"][0]["resident"]
    return "\n\n".join(
        [
            table(columns, rows),
            f"{_conditions(document)} Tokens a second, prefix {resident['prefix']}, outputs of "
            f"{resident['output_tokens']} tokens; walking on the device: {resident['walk_us']:.1f} "
            "us a step.",
        ]
    )


def render_check(documents: Sequence[Document]) -> str:
    """The model's steps against those measured on a CPU."""
    document = checked(documents[0])
    results = document["results"]
    rows = [
        [
            f"`{s['document']}`, {s['dtype']}",
            f"{s['prefix']:,}",
            str(s["rows"]),
            f"{s['measured_ms']:.1f}",
            f"{s['predicted_ms']:.1f}",
            f"{100 * s['error']:+.0f} %",
            f"{s['without_overlap_ms']:.1f}",
            f"{100 * s['error_without_overlap']:+.0f} %",
        ]
        for s in results["steps"]
        if s["rows"] in (1, 4, 8, 16, 32, 48, 64)
    ]
    rates = ", ".join(f"{d} {r:.2f}" for d, r in results["tflops_of_a_thread"].items())
    few = results["median_error_up_to_16_rows"]
    return "\n\n".join(
        [
            table(
                (
                    *("measured by", "prefix", "rows", "ms", "computed", "off by"),
                    *("without overlap", "off by"),
                ),
                rows,
            ),
            f"SmolLM2-135M-Instruct. Of all {len(results['steps'])} steps the median distance is "
            f"{100 * results['median_error']:.0f} % ({100 * few:.0f} % up to 16 rows), the largest "
            f"{100 * results['worst_error']:.0f} %; without overlap "
            f"{100 * results['median_error_without_overlap']:.0f} % and "
            f"{100 * results['worst_error_without_overlap']:.0f} %. Bandwidth: each document's own "
            f"measurement; arithmetic: measured on one thread, in TFLOP/s: {rates}. "
            f"{machine(document)}.",
        ]
    )


def _conditions(document: Document) -> str:
    settings = document["settings"]
    gpus = settings["gpus"]
    where = next(iter(gpus.values()))["name"] if len(gpus) == 1 else f"{len(gpus)} GPUs"
    return f"{_NOT_MEASURED}: {where}, {settings['dtype']}."
