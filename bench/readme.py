"""Write the README's table from a committed result: `python -m bench.readme`.

Nobody types a figure: the table between the markers is a rendering of the JSON document, and a test
compares the two.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
RESULT = ROOT / "bench" / "results" / "decode_cpu.json"
BEGIN, END = "<!-- bench:decode -->", "<!-- /bench:decode -->"

_LABELS = {
    "mt_bench": "MT-Bench",
    "gsm8k_100": "GSM8K",
    "humaneval": "HumanEval",
    "mbpp_100": "MBPP",
}


def render(document: Mapping[str, Any]) -> str:
    """The Markdown table of the first drafter of a `decode` document, with its conditions."""
    if not document["correct"]:
        raise ValueError("the document holds outputs that differ from plain decoding")
    settings, machine = document["settings"], document["machine"]
    lines = [
        "| prompts | plain, tokens/s | PTD, tokens/s | speed-up | tokens a step |",
        "|---|---|---|---|---|",
    ]
    for entry in document["results"]["sets"]:
        plain, drafted = entry["plain"], entry["drafters"][0]
        name = entry["prompt_set"]
        label = "**all**" if name == "total" else _LABELS.get(name, name)
        lines.append(
            f"| {label} ({entry['prompts']}) | {plain['tokens_per_second']:.1f} "
            f"| {drafted['tokens_per_second']:.1f} | {drafted['speedup']:.2f}x "
            f"| {drafted['decoding_efficiency']:.2f} |"
        )
    conditions = (
        f"SmolLM2-135M-Instruct, {settings['dtype']}, greedy, first turns through the chat "
        f"template, at most {settings['max_new_tokens']} tokens, prefill included; drafter "
        f"`{document['results']['sets'][0]['drafters'][0]['drafter']}` against plain decoding with "
        f"the same kernels, alternating in one run, median of {settings['repeats']}; every output "
        f"compared and identical. {machine['cpu']}, {machine['torch_threads']} threads, torch "
        f"{document['versions']['torch']}."
    )
    return "\n".join([*lines, "", conditions])


def updated(readme: str, table: str) -> str:
    """`readme` with the text between the markers replaced."""
    head, rest = readme.split(BEGIN)
    _, tail = rest.split(END)
    return f"{head}{BEGIN}\n{table}\n{END}{tail}"


def main() -> None:
    """Rewrite the README."""
    document = json.loads(RESULT.read_text(encoding="utf-8"))
    README.write_text(updated(README.read_text(encoding="utf-8"), render(document)), "utf-8")


if __name__ == "__main__":
    main()
