from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ptd_engine.model import CausalLM, load_model
from ptd_engine.testing import tiny

Pair = tuple[Any, CausalLM]


@pytest.fixture(scope="session", autouse=True)
def _no_progress_bars() -> None:
    from transformers.utils import logging

    logging.disable_progress_bar()


@pytest.fixture
def make_pair(tmp_path: Path) -> Callable[..., Pair]:
    """Return a function (family, **config changes) -> (transformers model, ours, loaded from
    disk)."""

    def make(family: str, max_seq_len: int | None = 128, **changes: Any) -> Pair:
        reference = tiny.build(family, **changes)
        directory = tiny.save(reference, tmp_path / family)
        return reference, load_model(directory, max_seq_len=max_seq_len)

    return make


@pytest.fixture
def tokens() -> list[int]:
    generator = torch.Generator().manual_seed(3)
    return torch.randint(3, 97, (120,), generator=generator).tolist()
