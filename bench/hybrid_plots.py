"""The plots of `bench hybrid`: the sweep over budgets, a trace of the policy, reliability."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

_INCHES = (7.0, 4.2)


def draw(results: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write the plots into `folder`; nothing where matplotlib is missing."""
    if find_spec("matplotlib") is None:
        return []
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, drawer in _DRAWERS.items():
        figure = Figure(figsize=_INCHES, layout="constrained")
        FigureCanvasAgg(figure)
        drawer(results, figure.subplots())
        path = folder / f"hybrid_{name}.png"
        figure.savefig(path, dpi=150)
        paths.append(path)
    return paths


def _budgets(results: Mapping[str, Any], axes: Any) -> None:
    """Speed-up over plain decoding by budget, and what the automatic one reaches."""
    swept = [v for v in results["variants"] if v["kind"] == "budget"]
    fixed = [v for v in swept if v["name"].isdigit()]
    (auto,) = (v for v in swept if not v["name"].isdigit())
    for colour, prompt_set in enumerate(auto["sets"]):
        rows = [int(v["name"]) for v in fixed]
        gains = [v["sets"][prompt_set]["speedup"] for v in fixed]
        axes.plot(rows, gains, marker="o", color=f"C{colour}", label=prompt_set)
        reached = auto["sets"][prompt_set]
        axes.plot(reached["mean_rows"], reached["speedup"], marker="*", markersize=14,
                  color=f"C{colour}")  # fmt: skip
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set_xscale("log", base=2)
    axes.set_xlabel("candidate rows a step (star: automatic, at its mean)")
    axes.set_ylabel("speed-up over plain decoding")
    axes.legend()


def _trace(results: Mapping[str, Any], axes: Any) -> None:
    """Rows of every step of one prompt, and the tokens they gave."""
    one = max(results["trace"], key=lambda trace: len(set(trace["budgets"])))
    steps = range(len(one["budgets"]))
    axes.step(steps, one["budgets"], where="mid", label="candidate rows")
    axes.bar(range(len(one["step_tokens"])), one["step_tokens"], color="C1", label="tokens")
    axes.set_xlabel(f"step ({one['prompt_set']}, {one['id']})")
    axes.legend()


def _reliability(results: Mapping[str, Any], axes: Any) -> None:
    """Predicted acceptance against what came true."""
    points = results["reliability"]
    axes.plot([0, 1], [0, 1], color="black", linewidth=0.8)
    axes.scatter(
        [p["predicted"] for p in points],
        [p["came_true"] for p in points],
        s=[8 + 12 * len(str(int(p["predictions"]))) for p in points],
    )
    for p in points:
        axes.annotate(f"{int(p['predictions']):,}", (p["predicted"], p["came_true"]), fontsize=7)
    axes.set_xlabel("predicted probability of a proposed token (by tenths; number: proposals)")
    axes.set_ylabel("share that came true")


_DRAWERS: Mapping[str, Callable[[Mapping[str, Any], Any], None]] = {
    "budgets": _budgets,
    "trace": _trace,
    "reliability": _reliability,
}
