"""Markdown tables from the documents under bench/results; `bench.tables` says where they go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

LABELS = {
    "mt_bench": "MT-Bench",
    "gsm8k_100": "GSM8K",
    "humaneval": "HumanEval",
    "mbpp_100": "MBPP",
}
_OURS = {
    "plain": "ptd_engine, plain",
    "ptd": "**ptd_engine, ptd**",
    "hybrid": "**ptd_engine, hybrid**",
}
Document = Mapping[str, Any]


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def machine(document: Document) -> str:
    """The conditions that the processor sets."""
    facts = document["machine"]
    return (
        f"{facts['cpu']}, {facts['torch_threads']} threads, torch {document['versions']['torch']}"
    )


def checked(document: Document) -> Document:
    """The document; raises ValueError if a result in it was wrong."""
    if not document["correct"]:
        raise ValueError("the document holds outputs that differ from plain decoding")
    return document


def render_headline(documents: Sequence[Document]) -> str:
    """The drafters of a `decode` document by prompt set, with its conditions."""
    document = checked(documents[0])
    settings = document["settings"]
    rows = []
    for entry in document["results"]["sets"]:
        name = entry["prompt_set"]
        row = [
            f"{'**all**' if name == 'total' else LABELS.get(name, name)} ({entry['prompts']})",
            f"{entry['plain']['tokens_per_second']:.1f}",
        ]
        for drafted in entry["drafters"]:
            row += [f"{drafted['tokens_per_second']:.1f}", f"{drafted['speedup']:.2f}x"]
        rows.append(row)
    labels = [drafted["drafter"] for drafted in document["results"]["sets"][0]["drafters"]]
    columns = ["prompts", "plain, tokens/s"]
    for label in labels:
        columns += [f"`{label.partition(':')[0]}`, tokens/s", "speed-up"]
    drafters = " and ".join(f"`{label}`" for label in labels)
    return "\n\n".join(
        [
            table(columns, rows),
            f"SmolLM2-135M-Instruct in {settings['dtype']}, greedy, first turns through the chat "
            f"template, at most {settings['max_new_tokens']} tokens, prefill included; {drafters} "
            "against plain decoding with the same kernels, alternating in one run, "
            f"median of {settings['repeats']}; every output compared and identical. "
            f"{machine(document)}.",
        ]
    )


def render_trees(documents: Sequence[Document]) -> str:
    """Trees of several sizes against plain decoding, from a `decode` document."""
    document = checked(documents[0])
    total = next(e for e in document["results"]["sets"] if e["prompt_set"] == "total")
    rows = [
        [
            f"`{tree['drafter']}`",
            f"{tree['decoding_efficiency']:.2f}",
            f"{tree['hit_rate']:.2f}",
            f"{tree['mean_draft_nodes']:.1f}",
            f"{tree['mean_candidate_nodes']:.1f}",
            f"{tree['speedup']:.2f}x",
        ]
        for tree in total["drafters"]
    ]
    settings = document["settings"]
    return "\n\n".join(
        [
            table(("drafter", "DE", "HR", "Dft", "Ver", "speed-up"), rows),
            f"{total['prompts']} prompts, evenly of the four sets, {settings['dtype']}, greedy, at "
            f"most {settings['max_new_tokens']} tokens, against plain decoding in the same run, "
            f"every output identical to it. {machine(document)}.",
        ]
    )


def render_steps(documents: Sequence[Document]) -> str:
    """The cost of a step by rows, from a `step` document."""
    document = checked(documents[0])
    rows = [
        [str(r["rows"]), f"{r['ms']:.1f}", f"{r['ratio_to_one_row']:.2f}"]
        for r in document["results"]["steps"]
    ]
    settings = document["settings"]
    return "\n\n".join(
        [
            table(("rows", "ms", "of one row"), rows),
            f"{settings['dtype']}, prefix {settings['prefix'][0]}, forward and select, median. "
            f"{machine(document)}.",
        ]
    )


def render_verified(documents: Sequence[Document]) -> str:
    """One row a `ptd-engine verify` document."""
    rows = [
        [
            d["dtype"],
            d["kernels"]["linear"],
            _tree(d["drafter_config"]),
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
        "kernels",
        "tree (width, depth)",
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
    return table(columns, rows)


def _tree(config: Mapping[str, Any]) -> str:
    size = f"{config['width']}, {config['depth']}"
    recycles = ", recycling" if config["recycle_verified"] else ""
    return size + recycles


def render_kernel_steps(documents: Sequence[Document]) -> str:
    """Milliseconds of a step by rows, one column a `step` document (a dtype each)."""
    good = [checked(document) for document in documents]
    by_dtype = {d["settings"]["dtype"]: {s["rows"]: s for s in d["results"]["steps"]} for d in good}
    columns = ["rows", *(f"{dtype}, ms (of one row)" for dtype in by_dtype)]
    rows = [
        [
            str(count),
            *(
                f"{s[count]['ms']:.1f} ({s[count]['ratio_to_one_row']:.2f})"
                for s in by_dtype.values()
            ),
        ]
        for count in sorted(next(iter(by_dtype.values())))
    ]
    settings = good[0]["settings"]
    reads = ", ".join(
        f"{dtype} {100 * steps[1]['roofline_share']:.0f} %" for dtype, steps in by_dtype.items()
    )
    return "\n\n".join(
        [
            table(columns, rows),
            f"SmolLM2-135M-Instruct, prefix {settings['prefix'][0]}, forward and head, median. "
            "Share of the read bandwidth measured in the same run that a step of one row reaches: "
            f"{reads}. "
            f"{machine(good[0])}.",
        ]
    )


def render_peers(documents: Sequence[Document]) -> str:
    """Our decoding beside others', from `compare` documents (a dtype each)."""
    rows = []
    for document in map(checked, documents):
        prompts = len(document["results"]["prompts"])
        for entry in document["results"]["engines"]:
            prefill = entry["prefill_s"]
            rows.append(
                [
                    entry["engine"] if entry["engine"] not in _OURS else _OURS[entry["engine"]],
                    entry["dtype"],
                    f"{entry['decode_tokens_per_second']:.1f}",
                    f"{entry['of_plain']:.2f}",
                    "" if prefill is None else f"{1e3 * prefill:.0f}",
                    f"{entry['equal_outputs']} of {prompts}",
                ]
            )
    settings = documents[0]["settings"]
    columns = (
        "engine",
        "weights",
        "tokens/s",
        "of our plain",
        f"prefill of {settings['prefill_tokens']}, ms",
        "outputs equal to our plain",
    )
    return "\n\n".join(
        [
            table(columns, rows),
            f"SmolLM2-135M-Instruct, greedy, at most {settings['max_new_tokens']} tokens, decoding "
            f"without prefill, engines taking turns in one run, median of {settings['repeats']}. "
            f"{machine(documents[0])}.",
        ]
    )


def render_quality(documents: Sequence[Document]) -> str:
    """What a dtype costs in quality, from a `quality` document."""
    document = checked(documents[0])
    rows = [
        [
            r["dtype"],
            f"{r['weight_bytes'] / 1e6:.0f}",
            f"{r['perplexity']:.2f}",
            f"{100 * r['greedy_agreement']:.1f} %",
            f"{r['mean_kl']:.4f}",
        ]
        for r in document["results"]["dtypes"]
    ]
    columns = ("dtype", "weights, MB", "perplexity", "same greedy token", "mean KL, nats")
    settings = document["settings"]
    return "\n\n".join(
        [
            table(columns, rows),
            f"SmolLM2-135M-Instruct on {settings['tokens']} tokens of text, teacher-forced; "
            f"against {settings['reference']}. The file's weights were rounded to 4 bits before, "
            "by groups of 32 as int4 does it: int4 costs less here than it would elsewhere.",
        ]
    )


_METHOD_COLUMNS = ("tokens/s", "speed-up", "DE", "HR", "AL", "Dft", "Ver", "step cost")
_METHOD_FORMS = (".1f", ".2f", ".2f", ".2f", ".2f", ".1f", ".1f", ".2f")


def render_methods(documents: Sequence[Document]) -> str:
    """Methods over all sets, and their tokens a step by set, of the greedy part of a `paper`
    document.
    """
    document = checked(documents[0])
    part = next(s for s in document["results"]["sections"] if s["name"] == "greedy")
    rows = [dict(zip(part["columns"], row, strict=True)) for row in part["rows"]]
    sets = [name for name in dict.fromkeys(row["set"] for row in rows) if name != "all"]
    by_method = {(row["set"], row["method"]): row for row in rows}
    shown = []
    for method in dict.fromkeys(row["method"] for row in rows):
        total = by_method["all", method]
        cells = [
            "" if total[column] is None else format(total[column], form)
            for column, form in zip(_METHOD_COLUMNS, _METHOD_FORMS, strict=True)
        ]
        per_set = [f"{by_method[name, method]['DE']:.2f}" for name in sets]
        shown.append([f"`{method}`", *cells, *per_set])
    settings = document["settings"]
    prompts = sum(entry["prompts"] for entry in settings["prompt_sets"])
    names = [f"DE, {LABELS.get(name, name)}" for name in sets]
    return "\n\n".join(
        [
            table(("drafter", *_METHOD_COLUMNS, *names), shown),
            f"SmolLM2-135M-Instruct in {settings['dtype']}, greedy, {prompts} prompts through the "
            f"chat template, at most {settings['scale']['max_new_tokens']} tokens, prefill "
            "included; plain decoding and all drafters in turns, prompt by prompt; every output "
            f"compared and identical. {machine(document)}.",
        ]
    )
