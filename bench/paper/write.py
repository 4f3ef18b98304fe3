"""The report as one Markdown and one HTML file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from bench.paper.sections import Section

_STYLE = (
    "body{font:15px/1.5 sans-serif;max-width:70em;margin:2em auto;padding:0 1em}"
    "table{border-collapse:collapse;margin:1em 0}"
    "th,td{padding:.2em .7em;border-bottom:1px solid #ccc;text-align:right}"
    ".text{text-align:left}img{max-width:100%}"
)


def write_report(
    folder: Path,
    title: str,
    intro: Sequence[str],
    sections: Sequence[Section],
    plots: Mapping[str, Path],
) -> tuple[Path, Path]:
    """Write report.md and report.html; returns their paths.

    Args:
        intro: paragraphs.
        plots: of the sections that have one, by name; beside the report.
    """
    names = {name: path.name for name, path in plots.items()}
    markdown, html = folder / "report.md", folder / "report.html"
    markdown.write_text(as_markdown(title, intro, sections, names), encoding="utf-8")
    html.write_text(as_html(title, intro, sections, names), encoding="utf-8")
    return markdown, html


def as_markdown(
    title: str, intro: Sequence[str], sections: Sequence[Section], plots: Mapping[str, str]
) -> str:
    """The whole report."""
    parts = [f"# {title}", *intro]
    for section in sections:
        parts += [f"## {section.title}", section.note]
        if section.name in plots:
            parts.append(f"![{section.title}]({plots[section.name]})")
        parts.append(markdown_table(section))
    return "\n\n".join(parts) + "\n"


def markdown_table(section: Section) -> str:
    """The section's rows."""
    headings = [heading for heading, _ in section.columns]
    rule = ["---:" if form else "---" for _, form in section.columns]
    lines = [headings, rule, *section.cells()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def as_html(
    title: str, intro: Sequence[str], sections: Sequence[Section], plots: Mapping[str, str]
) -> str:
    """The whole report; plots are files beside it."""
    body = [f"<h1>{escape(title)}</h1>", *(f"<p>{escape(text)}</p>" for text in intro)]
    for section in sections:
        body.append(f"<h2>{escape(section.title)}</h2><p>{escape(section.note)}</p>")
        if section.name in plots:
            body.append(f'<p><img src="{escape(plots[section.name])}" alt=""></p>')
        body.append(_html_table(section))
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{_STYLE}</style>'
    return f"<!doctype html><html><head>{head}</head><body>{''.join(body)}</body></html>\n"


def _html_table(section: Section) -> str:
    kinds = ["" if form else ' class="text"' for _, form in section.columns]

    def line(cells: Sequence[str], tag: str) -> str:
        inner = "".join(
            f"<{tag}{kind}>{escape(cell)}</{tag}>" for cell, kind in zip(cells, kinds, strict=True)
        )
        return f"<tr>{inner}</tr>"

    rows = "".join(line(cells, "td") for cells in section.cells())
    return f"<table>{line([h for h, _ in section.columns], 'th')}{rows}</table>"
