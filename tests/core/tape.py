"""Random operation sequences for hypothesis: bytes that are read as small numbers.

One draw of bytes an example is many times faster than a strategy an operation, and shrinks
well: a shorter tape and smaller bytes are simpler sequences.
"""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st


class Tape:
    """Numbers from a byte string; zeros when it has run out."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def empty(self) -> bool:
        return self._at >= len(self._data)

    def below(self, limit: int) -> int:
        """A number in [0, limit), limit <= 256."""
        if self.empty:
            return 0
        value = self._data[self._at]
        self._at += 1
        return value % limit

    def between(self, low: int, high: int) -> int:
        """A number in [low, high]."""
        return low + self.below(high - low + 1)

    def one_in(self, n: int) -> bool:
        return self.below(n) == n - 1

    def unit(self) -> float:
        """A multiple of 2^-16 in [0, 1)."""
        return (self.below(256) * 256 + self.below(256)) / 65536


def on_tapes(examples: int, length: int) -> Callable[[Callable[[Tape], None]], Callable[[], None]]:
    """Run a test on `examples` tapes of up to `length` bytes, the same ones every time."""

    def decorate(test: Callable[[Tape], None]) -> Callable[[], None]:
        @settings(settings.get_profile("ci"), max_examples=examples)
        @given(data=st.binary(min_size=length // 4, max_size=length))
        def on_data(data: bytes) -> None:
            test(Tape(data))

        on_data.__name__ = test.__name__
        on_data.__qualname__ = test.__qualname__
        on_data.__module__ = test.__module__
        on_data.__doc__ = test.__doc__
        return on_data

    return decorate
