"""Metrics of several processes as one text in Prometheus' format."""

from __future__ import annotations

from collections.abc import Iterable


def joined(texts: Iterable[tuple[str, bytes]]) -> bytes:
    """Join texts: each sample gets a label `replica`, each metric's samples come together.

    Args:
        texts: name of the process, and its own text.
    """
    heads: dict[str, list[str]] = {}
    samples: dict[str, list[str]] = {}
    for name, text in texts:
        family = ""
        for line in text.decode().splitlines():
            if line.startswith("#"):
                _, keyword, family, *_ = line.split(" ", 3)
                known = heads.setdefault(family, [])
                if not any(head.split(" ", 2)[1] == keyword for head in known):
                    known.append(line)
            elif line:
                samples.setdefault(family, []).append(_labelled(line, name))
    lines = [line for family, head in heads.items() for line in head + samples.get(family, [])]
    return "".join(f"{line}\n" for line in lines).encode()


def _labelled(line: str, replica: str) -> str:
    label = f'replica="{replica}"'
    before, brace, rest = line.partition("{")
    if brace:
        return f"{before}{{{label},{rest}"
    metric, _, value = line.partition(" ")
    return f"{metric}{{{label}}} {value}"
