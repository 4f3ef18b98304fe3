from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pytest

from ptd_engine.errors import ConfigError
from ptd_engine.runner.buckets import (
    bucket_of,
    bucket_waste,
    choose_buckets,
    default_kv_buckets,
    default_node_buckets,
)


@pytest.mark.parametrize("most", [1, 2, 7, 8, 9, 63, 64, 65, 157, 256])
def test_default_node_buckets_rise_to_the_largest_step(most: int) -> None:
    buckets = default_node_buckets(most)
    assert buckets[0] == 1 and buckets[-1] == most
    assert list(buckets) == sorted(set(buckets))


@pytest.mark.parametrize("most", [1, 100, 2048, 2049, 8192, 32768, 131072])
def test_default_kv_buckets_rise_to_the_context(most: int) -> None:
    buckets = default_kv_buckets(most)
    assert buckets[-1] == most and list(buckets) == sorted(set(buckets))
    assert len(buckets) <= 5


def test_sizes_that_are_none() -> None:
    for call in (default_node_buckets, default_kv_buckets):
        with pytest.raises(ConfigError, match="=0 is not valid"):
            call(0)
    with pytest.raises(ConfigError, match="most=0 is not valid"):
        choose_buckets({1: 1}, float, 0, 4)
    with pytest.raises(ConfigError, match="sizes of 1 to 4"):
        choose_buckets({5: 1}, float, 1, 4)


def test_a_step_takes_the_next_bucket() -> None:
    assert [bucket_of((1, 8, 20), n) for n in (1, 2, 8, 9, 20)] == [1, 8, 8, 20, 20]
    with pytest.raises(ConfigError, match="size=21 is not valid: allowed is at most 20"):
        bucket_of((1, 8, 20), 21)


def test_waste_by_hand() -> None:
    waste = bucket_waste((4, 8), {1: 3, 5: 1}, lambda n: 10.0 + n)
    assert waste.padded_rows == pytest.approx(1 - 8 / 20)
    assert waste.extra_time == pytest.approx((3 * 14 + 18) / (3 * 11 + 15) - 1)
    nothing = bucket_waste((1, 5), {1: 3, 5: 1}, lambda n: 10.0 + n)
    assert (nothing.padded_rows, nothing.extra_time) == (0, 0)


def tiles(rows: int) -> float:
    return 100.0 + 30.0 * ((rows - 1) // 4)


@pytest.mark.parametrize("cost", [float, tiles, lambda n: 50 + n**1.5, lambda n: 1.0])
@pytest.mark.parametrize("most", [1, 2, 3])
def test_no_other_choice_is_faster(cost: Callable[[int], float], most: int) -> None:
    draw, largest = random.Random(most), 12
    for _ in range(5):
        counts = {n: draw.randrange(1, 100) for n in draw.sample(range(1, largest + 1), 5)}

        def run(
            buckets: tuple[int, ...],
            counts: dict[int, int] = counts,
        ) -> float:
            return sum(count * cost(bucket_of(buckets, n)) for n, count in counts.items())

        found = choose_buckets(counts, cost, most, largest)
        assert len(found) <= most and found[-1] == largest
        others = itertools.combinations(range(1, largest), most - 1)
        assert run(found) == pytest.approx(min(run((*other, largest)) for other in others))


def test_buckets_end_where_tiles_do_and_none_is_idle() -> None:
    assert choose_buckets({1: 5, 2: 5, 6: 5, 11: 5}, tiles, 8, 12) == (4, 8, 12)
    assert choose_buckets({3: 1}, lambda n: 1.0, 8, 12) == (12,)
