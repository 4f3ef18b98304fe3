"""The recording twin of CUDA graphs: it replays what was recorded, and fails on what a captured
step must not do. Each fault is planted here in a step of a few tensors.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from ptd_engine.testing.graph_recorder import record
from ptd_engine.testing.graph_recording import TwinError
from ptd_engine.testing.graph_twin import GraphTwin

ROWS, WIDTH = 16, 8


class Toy:
    """Attention over a growing cache: x is written to the row that `length` names, then attends."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.weight = torch.randn(WIDTH, WIDTH, generator=generator)
        self.cache = torch.zeros(ROWS, WIDTH)
        self.x = torch.zeros(1, WIDTH)
        self.length = torch.zeros(1, dtype=torch.int64)
        self.out = torch.zeros(1, WIDTH)
        self.n = 0  # the same length, on the host
        self.scratch = torch.zeros(1, ROWS)

    def set(self, n: int) -> None:
        self.n = n
        self.length.fill_(n)
        self.x.copy_(torch.randn(1, WIDTH, generator=torch.Generator().manual_seed(100 + n)))

    def attend(self, visible: Tensor) -> None:
        scores = (self.x @ self.cache.t()).masked_fill(~visible, float("-inf"))
        self.out.copy_(scores.softmax(-1) @ self.cache)

    def step(self) -> None:
        self.cache.index_copy_(0, self.length, self.x @ self.weight)
        self.attend(torch.arange(ROWS)[None] <= self.length)


class BakedNumber(Toy):
    def step(self) -> None:
        self.cache[self.n] = (self.x @ self.weight)[0]
        self.attend(torch.arange(ROWS)[None] <= self.length)


class BakedSlice(Toy):
    def step(self) -> None:
        self.cache.index_copy_(0, self.length, self.x @ self.weight)
        live = self.cache[: self.n + 1]
        self.out.copy_((self.x @ live.t()).softmax(-1) @ live)


class BakedBranch(Toy):
    def step(self) -> None:
        super().step()
        if self.n > 1:
            self.out.mul_(2)


class NewBuffer(Toy):
    """Works in memory that every step allocates anew outside of what is captured."""

    def prepare(self) -> None:
        self.scratch = torch.zeros(1, ROWS)

    def step(self) -> None:
        self.scratch.copy_(torch.arange(ROWS)[None] <= self.length)
        self.cache.index_copy_(0, self.length, self.x @ self.weight)
        self.attend(self.scratch > 0)


class Item(Toy):
    def step(self) -> None:
        super().step()
        self.out.mul_(self.length.item())


class Compared(Toy):
    def step(self) -> None:
        super().step()
        if self.length > 3:
            self.out.zero_()


class ToHost(Toy):
    def step(self) -> None:
        super().step()
        self.out.mul_(self.length.cpu())


class ToNumpy(Toy):
    def step(self) -> None:
        super().step()
        self.out.mul_(float(self.length.numpy()[0]))


class NonZero(Toy):
    def step(self) -> None:
        super().step()
        self.out[:, self.length.nonzero()[:, 0]] = 0


class BoolIndex(Toy):
    def step(self) -> None:
        super().step()
        self.out[self.out > 0] = 0


class FreshNumbers(Toy):
    def step(self) -> None:
        self.length.copy_(torch.tensor([self.n]))
        super().step()


def steps(toy: Toy, twin: GraphTwin, count: int = 6) -> bool:
    """Whether replays have the bits of a plain run of the same steps."""
    plain, same = Toy(), True
    replay: Callable[[], None] | None = None
    for n in range(count):
        for each in (plain, toy):
            each.set(n)
        plain.step()
        if isinstance(toy, NewBuffer):
            toy.prepare()
        if replay is None:
            twin.run(toy.step)
            replay = twin.capture(toy.step)
        else:
            replay()
        same = same and torch.equal(plain.out, toy.out)
    return same


def test_a_step_without_faults_replays_as_it_runs() -> None:
    toy, twin = Toy(), GraphTwin()
    twin.rewritten = lambda: [toy.out]
    assert steps(toy, twin)
    assert (twin.captures, twin.replays) == (1, 5)


def test_a_capture_runs_nothing() -> None:
    toy = Toy()
    toy.set(3)
    before = toy.cache.clone(), toy.out.clone()
    replay = GraphTwin().capture(toy.step)
    assert torch.equal(toy.cache, before[0]) and torch.equal(toy.out, before[1])
    replay()
    assert toy.cache[3].abs().sum() > 0 and toy.out.abs().sum() > 0


@pytest.mark.parametrize("fault", [BakedNumber, BakedSlice, BakedBranch])
def test_a_baked_in_number_is_named(fault: type[Toy]) -> None:
    with pytest.raises(TwinError, match="captured"):
        steps(fault(), GraphTwin())


@pytest.mark.parametrize("fault", [BakedNumber, BakedSlice, BakedBranch])
def test_a_baked_in_number_shows_in_the_results_too(fault: type[Toy]) -> None:
    toy, plain = fault(), fault()
    replay: Callable[[], None] | None = None
    same = True
    for n in (2, 5, 0, 9):
        toy.set(n)
        plain.set(n)
        plain.step()
        if replay is None:
            replay = GraphTwin(again=False).capture(toy.step)
        replay()
        same = same and torch.equal(toy.out, plain.out)
    assert not same


def test_memory_allocated_anew_for_a_replay_is_found() -> None:
    with pytest.raises(TwinError, match="captured"):
        steps(NewBuffer(), GraphTwin())
    # Without a second recording the replay itself finds that the captured memory is gone.
    with pytest.raises(TwinError, match="memory is gone"):
        steps(NewBuffer(), GraphTwin(again=False))


@pytest.mark.parametrize(
    "fault", [Item, Compared, ToHost, ToNumpy, NonZero, BoolIndex, FreshNumbers]
)
def test_what_waits_for_the_device_is_refused(fault: type[Toy]) -> None:
    toy = fault()
    toy.set(1)
    with pytest.raises(TwinError, match="captured"):
        record(toy.step)
    toy.step()  # and outside of a capture nothing is


def test_garbage_in_memory_that_is_not_rewritten_shows() -> None:
    class Stale(Toy):
        def step(self) -> None:
            super().step()
            self.scratch.add_(1)  # counts on what the last step left there
            self.out.add_(self.scratch[:, :1])

    toy, twin = Stale(), GraphTwin()
    twin.rewritten = lambda: [toy.scratch]
    assert not steps(toy, twin)
    assert toy.out.isnan().all()


def test_allocations_of_the_step_itself_hold_garbage_before_a_replay() -> None:
    class Unset(Toy):
        def step(self) -> None:
            super().step()
            self.out.add_(torch.empty(1, WIDTH))

    toy = Unset()
    assert not steps(toy, GraphTwin())
    assert toy.out.isnan().all()


def test_a_shape_that_depends_on_data_is_found() -> None:
    toy = Toy()
    choice = torch.tensor([1, 2])

    def step() -> None:
        toy.out.fill_(float(torch.repeat_interleave(torch.ones(2), choice).shape[0]))

    recording = record(step)
    choice.fill_(3)
    with pytest.raises(TwinError, match="a shape depends on data"):
        recording.replay()
