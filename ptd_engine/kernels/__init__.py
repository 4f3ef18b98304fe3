"""The operations of a forward pass and the backends that serve them."""

from ptd_engine.kernels.ops import (
    WEIGHT_FORMATS,
    LinearWeight,
    OpChoice,
    Ops,
    Record,
    SelectMode,
    StepScratch,
    WeightFormat,
)
from ptd_engine.kernels.processing import Processing
from ptd_engine.kernels.registry import BACKENDS, OP_NAMES, Backend, preferred_dtype, select_ops
from ptd_engine.kernels.request import KernelRequest

__all__ = [
    "BACKENDS",
    "OP_NAMES",
    "WEIGHT_FORMATS",
    "Backend",
    "KernelRequest",
    "LinearWeight",
    "OpChoice",
    "Ops",
    "Processing",
    "Record",
    "SelectMode",
    "StepScratch",
    "WeightFormat",
    "preferred_dtype",
    "select_ops",
]
