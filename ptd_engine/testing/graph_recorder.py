"""Records what a step does to tensors, as a stream capture on a GPU would.

A recording sees every operation that torch dispatches, every launch of an interpreted Triton
kernel, and every call of an op that `opaque` has wrapped. Replaying it runs exactly these, on the
same memory, and no line of the Python that issued them: a number that Python had is the number of
the capture.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from ptd_engine.kernels import OP_NAMES, Ops
from ptd_engine.testing.graph_recording import (
    Call,
    Inside,
    Outside,
    Recording,
    TwinError,
    leaves_of,
    map_leaves,
)

# Operations whose result, or its shape, is on the host.
_WAITS = frozenset(
    f"aten::{name}"
    for name in (
        *("_local_scalar_dense", "item", "is_nonzero", "equal", "nonzero", "masked_select"),
        *("unique_dim", "unique_consecutive", "_unique2", "_unique", "allclose", "bincount"),
    )
)
# Of torch's interface, what reads a tensor on the host, or brings data from there. Where both are
# one memory torch does not dispatch it.
_READS = frozenset(
    getattr(Tensor, name)
    for name in ("cpu", "numpy", "tolist", "item", "__bool__", "__int__", "__float__", "__index__")
)
_BRINGS = frozenset((torch.tensor, torch.as_tensor, torch.from_numpy))


class _Recorder(TorchDispatchMode):
    """Fills a `Recording`, and knows what memory it changed on the way."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.recording = Recording()
        self._numbers: dict[int, int] = {}  # storage -> number of the allocation
        self._before: dict[int, tuple[Tensor, Tensor]] = {}  # storage -> bytes, and a copy of them

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        schema = func._schema
        masks = args[1] if schema.name in ("aten::index", "aten::index_put_") else ()
        if schema.name in _WAITS or any(m is not None and m.dtype == torch.bool for m in masks):
            raise TwinError(f"{schema.name} waits for the device in a step that is captured")
        if schema.name == "aten::lift_fresh":
            raise TwinError("a step that is captured makes a tensor of numbers on the host")
        written = [
            value
            for index, argument in enumerate(schema.arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
            for value in [kwargs.get(argument.name, args[index] if index < len(args) else None)]
        ]
        return self.call(schema.name, func, args, kwargs, written)

    def call(
        self,
        name: str,
        run: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        written: Any,
    ) -> Any:
        """Run and record one call that may change the tensors in `written`."""
        for tensor in leaves_of(written):
            if isinstance(tensor, Tensor):
                self._keep(tensor)
        held_args, held_kwargs = map_leaves((args, kwargs), (Tensor,), self._held)
        result = run(*args, **kwargs)
        known = {
            leaf.untyped_storage()._cdata
            for leaf in leaves_of(args, kwargs)
            if isinstance(leaf, Tensor) and leaf.layout == torch.strided
        }
        results = tuple(self._result(leaf, known) for leaf in leaves_of(result))
        self.recording.calls.append(Call(name, run, held_args, held_kwargs, results))
        return result

    def _held(self, tensor: Tensor) -> Any:
        if tensor.layout != torch.strided or tensor.is_mkldnn:
            return tensor  # an opaque weight
        number = self._numbers.get(tensor.untyped_storage()._cdata)
        return Outside.of(tensor) if number is None else Inside(tensor, number)

    def _result(self, leaf: Any, known: set[int]) -> Inside | None:
        """What a result is to be kept as: new memory, or nothing."""
        if not isinstance(leaf, Tensor):
            return None
        storage = leaf.untyped_storage()._cdata
        if storage in known:
            return None
        if storage not in self._numbers:
            self._numbers[storage] = len(self.recording.allocated)
            self.recording.allocated.append(leaf)
        return Inside(leaf, self._numbers[storage])

    def _keep(self, tensor: Tensor) -> None:
        """Remember what memory from outside holds before the first call that may change it."""
        if tensor.layout != torch.strided or tensor.is_mkldnn:
            return
        storage = tensor.untyped_storage()
        if storage._cdata not in self._numbers and storage._cdata not in self._before:
            held = torch.empty(0, dtype=torch.uint8).set_(storage)
            self._before[storage._cdata] = held, held.clone()

    def undo(self) -> None:
        """Put everything back: a capture runs nothing."""
        for now, before in self._before.values():
            now.copy_(before)


class _Watch(TorchFunctionMode):
    """Refuses what reads a tensor on the host."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        given = (*args[1:], *kwargs.values())
        to_host = func is Tensor.to and any(
            value in ("cpu", torch.device("cpu")) for value in given
        )
        if _recorders and (func in _READS or to_host):
            raise TwinError(f"{_name(func)} waits for the device in a step that is captured")
        if _recorders and func in _BRINGS:
            raise TwinError(f"{_name(func)}: a captured step makes a tensor of numbers on the host")
        return func(*args, **kwargs)


def _name(func: Any) -> str:
    return str(getattr(func, "__name__", func))


_recorders: list[_Recorder] = []


def record(step: Callable[[], None]) -> Recording:
    """Record a step; the memory from outside is afterwards as it was before.

    Raises:
        TwinError: it waits for the device, or brings numbers of the host.
    """
    recorder = _Recorder()
    with ExitStack() as stack:
        stack.enter_context(_recorded_launches())
        stack.callback(recorder.undo)
        stack.enter_context(_on(recorder))
        stack.enter_context(_Watch())
        stack.enter_context(recorder)
        step()
    return recorder.recording


@contextmanager
def _on(recorder: _Recorder) -> Iterator[None]:
    _recorders.append(recorder)
    try:
        yield
    finally:
        _recorders.pop()


def _record_call(
    name: str, run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Record a call as one operation, whatever it does inside; any of its tensors may change."""
    recorder = _recorders.pop()  # what happens inside is nobody's business
    try:
        with _disable_current_modes():
            return recorder.call(name, run, args, kwargs, (args, kwargs))
    finally:
        _recorders.append(recorder)


@contextmanager
def _recorded_launches() -> Iterator[None]:
    """Interpreted Triton kernels do not go through torch: record their launches."""
    interpreter = sys.modules.get("triton.runtime.interpreter")
    if interpreter is None:
        yield
        return
    launch = interpreter.GridExecutor.__call__

    def recorded(executor: Any, *args: Any, **kwargs: Any) -> Any:
        if not _recorders:
            return launch(executor, *args, **kwargs)
        name = f"{executor.fn.__name__}[{executor.grid}]"
        return _record_call(name, _Launch(launch, executor), args, kwargs)

    with mock.patch.object(interpreter.GridExecutor, "__call__", recorded):
        yield


@dataclass(frozen=True)
class _Launch:
    """A launch with the grid of its capture."""

    launch: Callable[..., Any]
    executor: Any

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        self.launch(self.executor, *args, **kwargs)


def opaque(ops: Ops) -> Ops:
    """The same ops, each recorded as one call: for kernels that torch does not see."""

    def wrap(name: str, op: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            return _record_call(name, op, args, kwargs) if _recorders else op(*args, **kwargs)

        return call

    names = [f.name for f in fields(ops) if f.name in OP_NAMES and not f.name.startswith("pack")]
    changed: dict[str, Any] = {name: wrap(name, getattr(ops, name)) for name in names}
    return replace(ops, record=None, fused=None, **changed)
