"""Estimates of batch times from the batches that ran."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from statistics import mean, quantiles

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from batchpool.core.scheduler.estimators import ServiceTime
from tests.unit.core.scheduler.queued import MS

often = settings(max_examples=100, deadline=None)
SIZES = (1, 2, 4, 8, 16, 32, 64)


def taught(batches: Sequence[tuple[int, float]]) -> ServiceTime:
    time = ServiceTime()
    for n, ns in batches:
        time.took(n, ns)
    return time


def line(n: int) -> float:
    return 5 * MS + n * MS / 10


def test_nothing_is_known_before_the_first_batch() -> None:
    time = ServiceTime()
    assert (time.known, time.mean_ns(5)) == (False, 0)
    time.took(1, 7 * MS)
    assert (time.known, time.mean_ns(1)) == (True, pytest.approx(7 * MS))


@often
@given(
    base_us=st.integers(0, 50_000),
    row_us=st.integers(1, 2_000),
    sizes=st.lists(st.integers(1, 256), min_size=2, max_size=16),
)
def test_times_on_a_line_are_learnt_exactly_at_once(
    base_us: int, row_us: int, sizes: list[int]
) -> None:
    assume(len({n.bit_length() for n in sizes}) > 1)
    time = taught([(n, 1000 * (base_us + row_us * n)) for n in sizes])
    assert time.base_ns == pytest.approx(1000 * base_us, rel=1e-6, abs=1000)
    assert time.row_ns == pytest.approx(1000 * row_us, rel=1e-6, abs=10)
    assert time.mean_ns(100) == pytest.approx(1000 * (base_us + 100 * row_us), rel=1e-6, abs=2000)


@often
@given(st.lists(st.tuples(st.integers(1, 4096), st.floats(0, 1e10)), min_size=1, max_size=40))
def test_neither_part_of_a_time_is_ever_below_zero(batches: list[tuple[int, float]]) -> None:
    """And an outlier counts as four times its average at most."""
    time = ServiceTime()
    for n, ns in batches:
        time.took(n, ns)
        assert time.base_ns >= 0
        assert time.row_ns >= 0
        assert time.mean_ns(1) > 0
        assert 1.02 <= time.spread <= 4


def test_after_many_batches_it_still_learns() -> None:
    """A model that has become twice as slow."""
    rng = random.Random(3)
    time = taught([(n, line(n)) for n in rng.choices(SIZES, k=500)])
    for n in rng.choices(SIZES, k=7 * 16 * 6):
        time.took(n, 2 * line(n))
    for n in SIZES:
        assert time.mean_ns(n) == pytest.approx(2 * line(n), rel=0.03)


@pytest.mark.parametrize("after", [3, 10, 200])
def test_one_batch_a_hundred_times_too_slow_moves_little(after: int) -> None:
    batches = [(n, line(n)) for n in SIZES for _ in range(after)]
    time = taught(batches)
    time.took(16, 100 * line(16))
    for _ in range(8):
        time.took(16, line(16))
    for n in SIZES:
        assert time.mean_ns(n) == pytest.approx(line(n), rel=0.35 if after < 10 else 0.12)


def test_sizes_that_were_not_seen_for_a_while_are_not_forgotten() -> None:
    time = taught([(n, line(n)) for n in SIZES])
    for _ in range(1000):
        time.took(64, line(64))
    for n in SIZES:
        assert time.mean_ns(n) == pytest.approx(line(n), rel=1e-6)


@pytest.mark.parametrize("n", [3, 20, 500])
def test_a_batch_too_slow_of_a_size_that_is_new_moves_little_too(n: int) -> None:
    """Where the others stand on a line; what really is that slow is learnt all the same."""
    seen = [size for size in SIZES if size.bit_length() != n.bit_length()]
    time = taught([(size, line(size)) for size in seen * 10])
    time.took(n, 2000 * MS)
    for _ in range(8):
        time.took(64, line(64))
    assert time.mean_ns(1) < 2 * line(1)
    for _ in range(40):
        time.took(n, 2000 * MS)
    average = time._classes[n.bit_length()]
    assert average[2] == pytest.approx(2000 * MS, rel=0.2)


def test_more_than_linear_is_a_line_through_the_origin() -> None:
    time = taught([(n, MS * n * n / 100) for n in SIZES for _ in range(8)])
    squares, cubes = sum(n**2 for n in SIZES), sum(n**3 for n in SIZES)
    assert time.base_ns == 0
    assert time.row_ns == pytest.approx(MS / 100 * cubes / squares)


def test_faster_for_more_rows_is_as_fast_for_all() -> None:
    time = taught([(n, 10 * MS - n * 1000) for n in SIZES for _ in range(8)])
    assert time.row_ns == 0
    assert 9.9 * MS < time.base_ns < 10 * MS


@pytest.mark.parametrize("n", [1, 7, 64])
def test_of_a_single_size_the_time_is_known(n: int) -> None:
    time = taught([(n, line(n) + noise) for noise in (MS, -MS) * 60])
    assert time.mean_ns(n) == pytest.approx(line(n), rel=0.02)
    assert time.row_ns == 0


def test_sizes_of_one_class_say_nothing_of_the_slope() -> None:
    """They share an average: one point, whatever the rounding of its arithmetic."""
    rng = random.Random(0)
    for _ in range(1000):
        time = ServiceTime()
        for _ in range(15):
            time.took(rng.randint(5, 7), rng.uniform(0.9, 1.1) * MS)
            assert time.row_ns == 0
            assert time.base_ns == pytest.approx(MS, rel=0.101)


def test_where_an_engine_takes_certain_sizes_all_rows_take_the_time_of_the_next() -> None:
    time = ServiceTime((4, 16, 64))
    for n in (1, 3, 4, 5, 10, 16, 17, 40, 64) * 4:
        time.took(n, line(next(size for size in (4, 16, 64) if size >= n)))
    assert time.mean_ns(1) == time.mean_ns(4) == pytest.approx(line(4))
    assert time.mean_ns(5) == time.mean_ns(16) == pytest.approx(line(16))
    assert time.high_ns(17) == time.high_ns(64) == pytest.approx(time.spread * line(64))
    assert time.row_ns == pytest.approx(MS / 10)


NOISES: dict[str, Callable[[random.Random], float]] = {
    "narrow": lambda rng: rng.uniform(0.9, 1.1),
    "normal": lambda rng: max(0.1, rng.gauss(1, 0.1)),
    "skewed": lambda rng: rng.lognormvariate(0, 0.3),
    "rarely_slow": lambda rng: 2.0 if rng.random() < 0.03 else 1.0,
}


@pytest.mark.parametrize("kind", NOISES)
def test_the_spread_is_the_99th_percentile(kind: str) -> None:
    rng = random.Random(11)
    noises = [NOISES[kind](rng) for _ in range(6000)]
    time, spreads, kept = ServiceTime(), [], 0
    for at, noise in enumerate(noises):
        n = rng.choice(SIZES)
        if at >= 1000:
            kept += noise * line(n) <= time.high_ns(n)
            spreads.append(time.spread)
        time.took(n, noise * line(n))
    true = quantiles(noises, n=100)[98] / mean(noises)
    assert mean(spreads) == pytest.approx(true, rel=0.12)
    assert kept / 5000 == pytest.approx(0.99, abs=0.004)


def test_the_spread_has_bounds() -> None:
    time = taught([(8, line(8))] * 2000)
    assert time.spread == 1.02
    assert time.high_ns(8) == pytest.approx(1.02 * line(8))
    most = 0.0
    for at in range(3000):
        time.took(8, line(8) * (1000 if at % 8 == 0 else 1))
        most = max(most, time.spread)
    assert most == 4


def test_the_spread_waits_for_times_to_compare_with() -> None:
    time = taught([(8, 1.0), (8, 1000.0 * MS)])
    assert time.spread == 1.25


# -- rare times -----------------------------------------------------------------------------


def slow_every(nth: int, batches: int, times: float = 3.0) -> ServiceTime:
    return taught([(8, line(8) * (times if i % nth == nth - 1 else 1)) for i in range(batches)])


def test_what_is_rare_is_not_expected_before_one_was_seen_and_then_at_once() -> None:
    time = slow_every(10**9, 40)
    assert time.tail == time.spread < 1.25
    assert slow_every(50, 56).tail > 2.8


@pytest.mark.parametrize(("nth", "seen"), [(20, True), (100, True), (150, True), (300, False)])
def test_the_tail_is_what_one_in_200_batches_takes(nth: int, seen: bool) -> None:
    """However slowly the spread follows, which looks for one in a hundred."""
    time = slow_every(nth, 1000)
    assert (time.tail > 2.5) == seen
    assert 1 < time.spread <= time.tail <= 4


def test_a_tail_that_is_over_is_forgotten() -> None:
    time = slow_every(50, 1000)
    for _ in range(520):
        time.took(8, line(8))
    assert time.tail == time.spread
