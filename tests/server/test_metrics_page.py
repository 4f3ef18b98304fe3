"""docs/metrics.md names what /metrics shows, all of it and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.parser import text_string_to_metric_families

from ptd_engine.server.prometheus import Metrics

from .conftest import CHAT, Running

PAGE = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")
_SUFFIXES = ("_sum", "_count", "_bucket")


def exported() -> dict[str, tuple[str, ...]]:
    """Name as it is queried -> labels, of all metrics."""
    found = {}
    for metric in vars(Metrics()).values():
        if isinstance(metric, Counter | Gauge | Histogram):
            name = metric._name + ("_total" if isinstance(metric, Counter) else "")
            found[name] = tuple(metric._labelnames)
    return found


def documented() -> dict[str, tuple[str, ...]]:
    """The same of the page's first table, in which "..." stands for the first name's beginning."""
    table = PAGE.partition("| | |")[2].partition("\n\n")[0]
    found = {}
    for row in table.splitlines()[2:]:
        beginning = ""
        for name, labels in re.findall(r"`([\w.]+)(?:\{([\w,]+)\})?`", row.split("|")[1]):
            beginning = beginning or name.partition("_num_")[0]
            whole = name.replace("...", beginning)
            found[whole] = tuple(labels.split(",")) if labels else ()
    return found


def test_the_page_names_every_metric_with_its_labels() -> None:
    assert documented() == exported()


def test_the_queries_ask_for_what_there_is() -> None:
    known = {*exported(), *(name + suffix for name in exported() for suffix in _SUFFIXES)}
    assert {name for name in re.findall(r"\bptd_\w+", PAGE) if name != "ptd_engine"} <= known


def test_all_of_them_are_scraped(server: Running) -> None:
    body = {"messages": [{"role": "user", "content": "Name a river."}], "max_tokens": 8}
    assert server.post(CHAT, body).status == 200
    families = text_string_to_metric_families(server.get("/metrics").body.decode())
    types = {family.name: family.type for family in families}
    for name in exported():
        assert types.get(name.removesuffix("_total")) in ("counter", "gauge", "histogram"), name
