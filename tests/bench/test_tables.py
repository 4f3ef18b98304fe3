from __future__ import annotations

import pytest

from bench.tables import BLOCKS, ROOT, Block


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: f"{block.path}:{block.marker}")
def test_the_documents_show_the_committed_results(block: Block) -> None:
    text = (ROOT / block.path).read_text(encoding="utf-8")
    assert text == block.updated(text), "run `python -m bench.tables`"
