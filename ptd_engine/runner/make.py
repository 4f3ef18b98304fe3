"""Choice of the runner for a model."""

from __future__ import annotations

from typing import Any, Literal

import torch

from ptd_engine.errors import ConfigError, UnavailableError
from ptd_engine.model import CausalLM
from ptd_engine.runner.base import ModelRunner
from ptd_engine.runner.cuda_graphs import CudaGraphs
from ptd_engine.runner.eager import EagerRunner
from ptd_engine.runner.graph import GraphRunner

GraphsMode = Literal["auto", "off", "require"]
GRAPHS_MODES: tuple[GraphsMode, ...] = ("auto", "off", "require")


def check_graphs(value: object) -> GraphsMode:
    """Return `value`; raise ConfigError for anything but "auto", "off" and "require"."""
    for mode in GRAPHS_MODES:
        if value == mode:
            return mode
    raise ConfigError.for_field(
        "graphs",
        value,
        "'auto', 'off' or 'require'",
        "auto captures steps where there is a GPU and goes on without where that fails; off runs "
        "steps op by op; require makes it an error not to have graphs.",
    )


def check_graphs_on(graphs: GraphsMode, device: torch.device, ranks: int = 1) -> None:
    """Raise UnavailableError where graphs are required and there are none."""
    if graphs != "require" or (device.type == "cuda" and ranks == 1):
        return
    where = f"on {device.type}" if ranks == 1 else f"with tensor_parallel={ranks}"
    why = "CUDA graphs need a GPU; CPU kernels record and replay a pass without them."
    if ranks > 1:
        why = "Steps of several ranks run op by op."
    raise UnavailableError.for_field("graphs", graphs, f"'auto' or 'off' {where}", why)


def make_runner(model: CausalLM, *, graphs: GraphsMode = "auto", **sizes: Any) -> ModelRunner:
    """The runner that suits the model's device.

    Args:
        graphs: see `check_graphs`. On a CPU there are none: kernels that can be recorded are
            replayed by `EagerRunner`.
        sizes: see `ModelRunner`, and `GraphRunner` where there is a GPU.

    Raises:
        ConfigError: an unknown `graphs`; as for `ModelRunner`.
        UnavailableError: graphs are required and cannot be had.
    """
    check_graphs(graphs)
    if graphs != "off" and model.device.type == "cuda":
        required = graphs == "require"
        return GraphRunner(model, CudaGraphs(model.device), required=required, **sizes)
    check_graphs_on(graphs, model.device)
    return EagerRunner(model, **sizes)
