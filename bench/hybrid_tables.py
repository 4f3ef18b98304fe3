"""Markdown tables of a `bench hybrid` document, and of a comparison of drafters at one budget."""

from __future__ import annotations

from collections.abc import Sequence

from bench.renderers import LABELS, Document, checked, machine, table


def render_budgets(documents: Sequence[Document]) -> str:
    """Fixed budgets and the automatic one."""
    return _variants(documents[0], "budget", "candidate rows")


def render_sources(documents: Sequence[Document]) -> str:
    """Each source left out."""
    return _variants(documents[0], "without", "without")


def render_split(documents: Sequence[Document]) -> str:
    """Draft rows in place of candidates."""
    return _variants(documents[0], "split", "candidates + drafts")


def render_equal_rows(documents: Sequence[Document]) -> str:
    """Tokens a step of several drafters, of a `decode` document."""
    document = checked(documents[0])
    sets = document["results"]["sets"]
    labels = [drafted["drafter"] for drafted in sets[0]["drafters"]]
    shown = sets if len(sets) > 2 else sets[:1]  # one set is its own total
    columns = ["drafter", "rows", *(_set_label(entry["prompt_set"]) for entry in shown)]
    rows = []
    for at, label in enumerate(labels):
        entries = [entry["drafters"][at] for entry in shown]
        total = entries[-1]
        nodes = total["mean_candidate_nodes"] + total["mean_draft_nodes"]
        rows.append(
            [
                f"`{label}`",
                f"{nodes:.1f}",
                *(f"{entry['decoding_efficiency']:.2f}" for entry in entries),
            ]
        )
    settings = document["settings"]
    mode = "greedy" if settings["temperature"] == 0 else f"temperature {settings['temperature']}"
    return "\n\n".join(
        [
            table(columns, rows),
            f"Tokens a step (DE), {mode}, {sets[0]['prompts']} prompts a set, at most "
            f"{settings['max_new_tokens']} tokens, {settings['dtype']}; every output compared with "
            "plain decoding's and identical.",
        ]
    )


def render_sampled(documents: Sequence[Document]) -> str:
    """Speed of several drafters by temperature, of `decode` documents that differ in it alone."""
    rows = []
    for document in map(checked, documents):
        sets = document["results"]["sets"]
        times = [prompt["seconds"] for prompt in document["results"]["prompts"]]
        for at, total in enumerate(sets[-1]["drafters"]):
            slowest = min(each["none"] / each[total["drafter"]] for each in times)
            rows.append(
                [
                    f"{document['settings']['temperature']:g}",
                    f"`{total['drafter']}`",
                    f"{total['decoding_efficiency']:.2f}",
                    f"{total['speedup']:.2f}x",
                    *(f"{entry['drafters'][at]['speedup']:.2f}x" for entry in sets[:-1]),
                    f"{slowest:.2f}x",
                ]
            )
    sets = documents[0]["results"]["sets"]
    settings = documents[0]["settings"]
    names = (_set_label(entry["prompt_set"]) for entry in sets[:-1])
    return "\n\n".join(
        [
            table(("temperature", "drafter", "DE", "speed-up", *names, "slowest prompt"), rows),
            f"{sets[0]['prompts']} prompts a set, at most {settings['max_new_tokens']} tokens, "
            f"{settings['dtype']}, prefill included, against plain decoding with the same seed in "
            f"the same run; every output identical to it. {machine(documents[0])}.",
        ]
    )


def _variants(document: Document, kind: str, heading: str) -> str:
    results = checked(document)["results"]
    chosen = [v for v in results["variants"] if v["kind"] == kind]
    sets = list(chosen[0]["sets"])
    rows = [
        [
            v["name"],
            f"{v['total']['mean_rows']:.1f}",
            f"{v['total']['decoding_efficiency']:.2f}",
            f"{v['total']['speedup']:.2f}x",
            *(f"{v['sets'][name]['speedup']:.2f}x" for name in sets),
        ]
        for v in chosen
    ]
    columns = (heading, "rows used", "DE", "speed-up", *(_set_label(name) for name in sets))
    settings = document["settings"]
    prompts = sum(one["prompts"] for one in settings["prompt_sets"])
    return "\n\n".join(
        [
            table(columns, rows),
            f"{prompts} prompts, evenly of the sets, {settings['dtype']}, greedy, at most "
            f"{settings['max_new_tokens']} tokens, prefill included, against plain decoding in the "
            f"same run; every output identical to it. {machine(document)}.",
        ]
    )


def _set_label(name: str) -> str:
    return "all" if name == "total" else LABELS.get(name, name)
