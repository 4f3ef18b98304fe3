"""The plots of the report, one PNG a section that has one."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bench.paper.sections import Section
from ptd_engine.errors import UnavailableError

_INCHES = (7.0, 4.2)


def check_available() -> None:
    """Raise UnavailableError where matplotlib is missing."""
    if find_spec("matplotlib") is None:
        raise UnavailableError(
            "The plots need matplotlib: pip install '.[bench]', or pass --without-plots."
        )


def draw(section: Section, folder: Path) -> Path | None:
    """Write the section's plot to `folder`; None if it has none, or no numbers to show."""
    drawer = _DRAWERS.get(section.name)
    if drawer is None or not section.rows:
        return None
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=_INCHES, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    if not drawer(section, axes):
        return None
    axes.set_title(section.title, fontsize=10)
    path = folder / f"{section.name}.png"
    figure.savefig(path, dpi=150)
    return path


def _bars(section: Section, axes: Any) -> bool:
    """Speed-up of every method over all sets."""
    over_all = [row for row in section.rows if row[0] == "all"]
    shown = [(row[1], row[3]) for row in over_all if row[3] is not None]
    axes.barh([str(label) for label, _ in shown][::-1], [float(v) for _, v in shown][::-1])
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.set_xlabel("speed-up")
    return bool(shown)


def _sweep(section: Section, axes: Any) -> bool:
    """DE and speed-up over the parameter."""
    parameter = section.columns[0][0]
    kept = [row for row, de in zip(section.rows, section.column("DE"), strict=True) if de]
    headings = [heading for heading, _ in section.columns]
    for name in ("DE", "speed-up"):
        at = headings.index(name)
        axes.plot([row[0] for row in kept], [row[at] for row in kept], marker="o", label=name)
    axes.set_xlabel(parameter)
    axes.legend()
    return bool(kept)


def _overhead(section: Section, axes: Any) -> bool:
    """DE over rows, a line a method."""
    for method in dict.fromkeys(row[0] for row in section.rows):
        points = sorted((row[2], row[3]) for row in section.rows if row[0] == method)
        axes.plot(*zip(*points, strict=True), marker="o", label=method)
    axes.set_xlabel("draft and candidate rows a step")
    axes.set_ylabel("DE, tokens a step")
    axes.legend()
    return True


def _branches(section: Section, axes: Any) -> bool:
    """Share of repeated tokens over steps, a line a method."""
    for label in dict.fromkeys(row[0] for row in section.rows):
        points = [(row[1], row[2]) for row in section.rows if row[0] == label]
        axes.plot(*zip(*points, strict=True), marker="o", label=label)
    axes.set_xlabel("step")
    axes.set_ylabel("share of repeated draft tokens")
    axes.legend(fontsize=7)
    return True


def _lines(section: Section, axes: Any) -> bool:
    """A line a row, over the headings of the columns, which are numbers."""
    places = [int(heading) for heading, _ in section.columns[1:]]
    for row in section.rows:
        axes.plot(places, row[1:], marker="o", label=str(row[0]))
    axes.set_xlabel("accepted candidates" if section.name == "acceptance" else "output token")
    axes.set_ylabel("share of steps" if section.name == "acceptance" else "tokens a step")
    axes.legend(fontsize=7)
    return True


def _time(section: Section, axes: Any) -> bool:
    """Stacked parts of a step's time, by rows."""
    places = section.column("rows")
    axes.stackplot(
        places,
        *(section.column(part) for part in ("forward", "retrieval", "update")),
        labels=("forward", "retrieval", "update"),
    )
    axes.set_xlabel("rows of a step")
    axes.set_ylabel("ms")
    axes.legend(loc="upper left")
    return len(places) > 1


_DRAWERS: dict[str, Callable[[Section, Any], bool]] = {
    "greedy": _bars,
    "sampled": _bars,
    "branches": _branches,
    "width": _sweep,
    "depth": _sweep,
    "overhead": _overhead,
    "acceptance": _lines,
    "position": _lines,
    "time": _time,
}
