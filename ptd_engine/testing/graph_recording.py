"""A recorded step: what was done to which memory, to be done again on the same.

Memory from outside is held as a GPU holds it, by its address: weakly. Memory that the step
allocated belongs to the recording.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

_UNSET = frozenset(
    f"aten::{name}" for name in ("empty", "empty_like", "new_empty", "empty_strided")
)
_POISON = 0xFF  # of a float's bytes: NaN; of an integer's: -1


class TwinError(AssertionError):
    """A step does what a captured one must not; not a RuntimeError, which a runner may handle."""


@dataclass(frozen=True)
class Outside:
    """A tensor that was there before: where it lies."""

    storage: StorageWeakRef
    address: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    @classmethod
    def of(cls, tensor: Tensor) -> Outside:
        """Note where a tensor lies, without keeping it alive."""
        storage = tensor.untyped_storage()
        return cls(
            StorageWeakRef(storage),
            storage.data_ptr(),
            tensor.dtype,
            tuple(tensor.shape),
            tensor.stride(),
            int(tensor.storage_offset()),
        )

    def tensor(self) -> Tensor:
        """The tensor as it lies there now. Raises TwinError if its memory is gone."""
        storage = torch.UntypedStorage._new_with_weak_ptr(self.storage.cdata)
        if storage is None or storage.data_ptr() != self.address:
            raise TwinError(
                f"a replay reads or writes {self.dtype} {list(self.shape)} at an address whose "
                "memory is gone: the step was captured with a tensor that did not live on"
            )
        found = torch.empty(0, dtype=self.dtype)
        return found.set_(storage, self.offset, self.shape, self.stride)

    def looks(self) -> tuple[object, ...]:
        """What must be the same in another recording."""
        return ("outside", self.address, self.dtype, self.shape, self.stride, self.offset)


@dataclass(frozen=True)
class Inside:
    """A tensor in memory that the step allocated itself."""

    held: Tensor
    number: int  # of the allocation

    def tensor(self) -> Tensor:
        """The tensor."""
        return self.held

    def looks(self) -> tuple[object, ...]:
        """What must be the same in another recording: not the address."""
        held = self.held
        place = (held.dtype, tuple(held.shape), held.stride(), int(held.storage_offset()))
        return ("inside", self.number, *place)


@dataclass(frozen=True)
class Call:
    """One operation: what is run, and where its results belong."""

    name: str
    run: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: tuple[Inside | None, ...]  # of every leaf; None: no new memory

    def looks(self) -> tuple[object, ...]:
        """What another recording of the same step has to have in its place."""
        return (
            self.name,
            *self.kwargs,
            *(_look(leaf) for leaf in leaves_of(self.args, self.kwargs)),
        )


def _look(leaf: object) -> object:
    if isinstance(leaf, Outside | Inside):
        return leaf.looks()
    return leaf if isinstance(leaf, str | int | float) or leaf is None else repr(type(leaf))


def leaves_of(*trees: Any) -> Iterator[Any]:
    """What tuples, lists and the values of mappings hold, at any depth."""
    for tree in trees:
        if isinstance(tree, tuple | list):
            yield from leaves_of(*tree)
        elif isinstance(tree, dict):
            yield from leaves_of(*tree.values())
        else:
            yield tree


@dataclass
class Recording:
    """A recorded step.

    Attributes:
        calls: in order.
        allocated: the base of each allocation that the step made.
    """

    calls: list[Call] = field(default_factory=list)
    allocated: list[Tensor] = field(default_factory=list)

    def replay(self) -> None:
        """Run the calls; what they allocate holds garbage before."""
        for base in self.allocated:
            poison(base)
        for call in self.calls:
            if call.name in _UNSET:  # what it gives is garbage, as above
                continue
            args, kwargs = map_leaves((call.args, call.kwargs), (Outside, Inside), _tensor_of)
            results = leaves_of(call.run(*args, **kwargs))
            for kept, new in zip(call.results, results, strict=True):
                if kept is None:
                    continue
                if kept.held.shape != new.shape:
                    raise TwinError(
                        f"{call.name} gave {list(kept.held.shape)} in the capture and "
                        f"{list(new.shape)} now: a shape depends on data"
                    )
                kept.held.copy_(new)

    def difference(self, other: Recording) -> str:
        """How `other` departs from this one, "" if it does not."""
        for number, (ours, theirs) in enumerate(zip(self.calls, other.calls, strict=False)):
            if ours.looks() != theirs.looks():
                pairs = zip(ours.looks(), theirs.looks(), strict=False)
                first = next(((a, b) for a, b in pairs if a != b), ("fewer", "arguments"))
                return (
                    f"call {number}, {ours.name}: {first[0]} was captured, now it would be "
                    f"{first[1]}"
                )
        if len(self.calls) != len(other.calls):
            return f"{len(self.calls)} calls were captured, now there would be {len(other.calls)}"
        return ""


def poison(tensor: Tensor) -> None:
    """Fill the memory of a tensor with bytes that no result may come from."""
    torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage()).fill_(_POISON)


def _tensor_of(held: Outside | Inside) -> Tensor:
    return held.tensor()


def map_leaves(tree: Any, kinds: tuple[type, ...], change: Callable[[Any], Any]) -> Any:
    """`tree` with every leaf of these kinds changed."""
    if isinstance(tree, kinds):
        return change(tree)
    if isinstance(tree, tuple | list):
        return type(tree)([map_leaves(item, kinds, change) for item in tree])
    if isinstance(tree, dict):
        return {key: map_leaves(item, kinds, change) for key, item in tree.items()}
    return tree
