"""ptd_engine: Progressive Tree Drafting for Llama and Qwen checkpoints, one request at a time.

from ptd_engine import LLM, SamplingParams

llm = LLM.from_pretrained("demo")
print(llm.generate("The sky is", SamplingParams(max_new_tokens=32)).text)
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from ptd_engine.config import PTDConfig, SamplingParams
from ptd_engine.errors import (
    BusyError,
    CheckpointError,
    ConfigError,
    DistributedError,
    EngineError,
    PromptError,
    PTDError,
    UnavailableError,
)

if TYPE_CHECKING:
    from ptd_engine.llm import LLM

if find_spec("ptd_engine._core") is None:
    raise ImportError(
        f"The C++ core of ptd_engine is not compiled in {Path(__file__).parent}. In a source tree "
        "run `make install` or `pip install -e .`; to use an installed package, start elsewhere."
    )

__version__ = "0.1.0"

__all__ = [
    "LLM",
    "BusyError",
    "CheckpointError",
    "ConfigError",
    "DistributedError",
    "EngineError",
    "PTDConfig",
    "PTDError",
    "PromptError",
    "SamplingParams",
    "UnavailableError",
]


def __getattr__(name: str) -> object:
    # LLM brings torch, which takes seconds: it is imported when it is first asked for.
    if name == "LLM":
        from ptd_engine.llm import LLM

        return LLM
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
