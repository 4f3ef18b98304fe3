from __future__ import annotations

import os
import signal
from pathlib import Path

# Before torch is imported: idle OpenMP threads must not spin on a machine that tests share.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# Before Triton is imported: without a GPU its kernels run interpreted, on CPU tensors.
if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")

import pytest

# A shell that starts the tests in the background lets them ignore interrupts; some test those.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of the prompt sets that lie beside the repository; tests that need it skip without."""
    root = Path(os.environ.get("PTD_SHARED", Path(__file__).parents[2] / "shared"))
    folder = root / "data"
    if not folder.is_dir():
        pytest.skip(f"no prompt sets at {folder}: set PTD_SHARED to the folder that holds data/")
    return folder


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rehearse-gpu",
        action="store_true",
        help="run the tests of tests/gpu on a CPU: interpreted, built for the host, few cases",
    )
