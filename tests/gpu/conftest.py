"""Every test here has the marker `gpu`. Without a CUDA device they are skipped, unless pytest is
given --rehearse-gpu: then the Triton kernels are interpreted and the CUDA kernels built for the
CPU, with few small cases.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from gpu.device import BF16, ON_GPU, get_ops

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    absent = not ON_GPU and not config.getoption("--rehearse-gpu")
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker(pytest.mark.gpu)
            if absent:
                item.add_marker(pytest.mark.skip(reason="no CUDA device"))


@pytest.fixture(params=["triton", "cuda"])
def backend(request: pytest.FixtureRequest) -> str:
    """A backend's name; the test is skipped with the reason where it cannot serve."""
    name: str = request.param
    if name == "triton":
        pytest.importorskip("triton", reason="Triton is not installed")
    get_ops(name, BF16, 64)
    return name
