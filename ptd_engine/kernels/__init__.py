"""The operations of a forward pass and the backends that serve them."""

from ptd_engine.kernels.ops import LinearWeight, OpChoice, Ops, SelectMode, StepScratch
from ptd_engine.kernels.registry import BACKENDS, OP_NAMES, Backend, select_ops

__all__ = [
    "BACKENDS",
    "OP_NAMES",
    "Backend",
    "LinearWeight",
    "OpChoice",
    "Ops",
    "SelectMode",
    "StepScratch",
    "select_ops",
]
