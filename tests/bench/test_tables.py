from __future__ import annotations

import re

import pytest

from bench.tables import BLOCKS, ROOT, Block


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: f"{block.path}:{block.marker}")
def test_the_documents_show_the_committed_results(block: Block) -> None:
    text = (ROOT / block.path).read_text(encoding="utf-8")
    assert text == block.updated(text), "run `python -m bench.tables`"


def test_every_block_has_its_table() -> None:
    known = {(block.path, block.marker) for block in BLOCKS}
    assert len(known) == len(BLOCKS)
    found = {
        (path.relative_to(ROOT).as_posix(), marker)
        for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"))
        for marker in re.findall(r"<!-- bench:([\w-]+) -->", path.read_text(encoding="utf-8"))
    }
    assert found == known


def test_no_figure_of_the_tuning_page_is_typed() -> None:
    text = (ROOT / "docs" / "tuning.md").read_text(encoding="utf-8")
    typed = re.sub(r"<!-- bench:([\w-]+) -->.*?<!-- /bench:\1 -->", "", text, flags=re.DOTALL)
    assert len(typed) < len(text)
    assert not re.findall(r"\d ?(?:ms|s|x|%|MB|MiB|GB|times|tokens/s)(?!\w)", typed)
