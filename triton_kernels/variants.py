"""One compiled form of a kernel, as the ahead-of-time check (`aot`) compiles it.

A module with kernels has a function `variants() -> list[Variant]` and is named in `aot.MODULES`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

ARCHS = (80, 90, 100)


@dataclass(frozen=True)
class Variant:
    """A kernel with the types of its arguments and its constants.

    Attributes:
        name: says what is special here ("prefix bf16 d128 m64"); unique with `kernel` and arch.
        kernel: the function that @triton.jit made.
        signature: Triton's name of each argument's type that is no constant, in the order of the
            parameters: "*bf16", "*fp32", "*i64", "i32", "fp32", ...
        constants: the value of each tl.constexpr parameter.
        num_warps, num_stages: as at the launch.
        aligned: arguments that are multiples of 16 (pointers as torch allocates them, strides):
            what a launch finds out by itself.
        archs: the compute capabilities that it is launched on.
        quick: among those that every run of the tests compiles.
    """

    name: str
    kernel: Any
    signature: Mapping[str, str]
    constants: Mapping[str, Any] = field(default_factory=dict)
    num_warps: int = 4
    num_stages: int = 2
    aligned: tuple[str, ...] = ()
    archs: tuple[int, ...] = ARCHS
    quick: bool = False
