"""The documentation hangs together: every page is in the menu, every link leads somewhere."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))
TOP = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")


def load(path: Path) -> Any:
    """A module that lies in no package."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


site_links = load(ROOT / ".ci/site_links.py")


def menu(entries: list[Any]) -> Iterator[str]:
    """The files that a `nav` of mkdocs names."""
    for entry in entries:
        for target in entry.values() if isinstance(entry, dict) else [entry]:
            yield from menu(target) if isinstance(target, list) else [target]


def anchors(text: str) -> set[str]:
    """The ids that mkdocs gives the headings of a page."""
    found = set()
    for line in re.findall(
        r"^#+ +(.*)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE
    ):
        plain = re.sub(r"[^\w\s-]", "", line).strip().lower()
        found.add(re.sub(r"[-\s]+", "-", plain))
    return found


def test_every_page_is_in_the_menu_once() -> None:
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    named = list(menu(config["nav"]))
    assert {page.name for page in PAGES} <= set(named)
    assert len(set(named)) == len(named)


@pytest.mark.parametrize("page", [*PAGES, *TOP], ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in LINK.findall(CODE.sub("", text)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path) if path else page
        assert file.exists(), f"{page.name} links {target}"
        if anchor and file.suffix == ".md":
            assert anchor in anchors(file.read_text(encoding="utf-8")), f"{page.name}: {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_of_the_site_link_nothing_outside_it(page: Path) -> None:
    # A link above docs/ works in the repository; on the site it would lead nowhere.
    shown = site_links.on_page_markdown(page.read_text(encoding="utf-8"))
    for target in LINK.findall(CODE.sub("", shown)):
        assert not target.startswith("../"), f"{page.name} links {target}"


def test_a_link_outside_becomes_its_text() -> None:
    shown = site_links.on_page_markdown("see [the unit](../deploy/a.service) and [b](c.md)")
    assert shown == "see the unit (`deploy/a.service`) and [b](c.md)"


def test_a_reader_asks_no_other_host() -> None:
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    assert config["theme"]["font"] is False
    assert "extra_javascript" not in config
    images = re.compile(r"!\[[^\]]*\]\(https?:|<(?:img|script|link|iframe)\b[^>]*https?:")
    for page in PAGES:
        assert not images.search(CODE.sub("", page.read_text(encoding="utf-8"))), page.name


def test_tests_that_the_reliability_page_names_exist() -> None:
    text = (DOCS / "reliability.md").read_text(encoding="utf-8")
    named = re.findall(r"`((?:tests|csrc)/[\w/]+\.(?:py|cpp))`", text)
    assert len(named) > 15
    for path in named:
        assert (ROOT / path).is_file(), path


def test_wheels_are_built_for_every_python_that_is_supported() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    wheels = project["tool"]["cibuildwheel"]
    lowest = project["project"]["requires-python"].removeprefix(">=")
    assert wheels["build"][0] == f"cp{lowest.replace('.', '')}-*"
    assert wheels["environment"]["PTD_CUDA"] == "0"
    assert set(wheels["linux"]["archs"]) == {"x86_64", "aarch64"}
    assert "{project}/tests/packaging/smoke.py" in wheels["test-command"]
