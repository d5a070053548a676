"""Rates of the last seconds, from counts that only rise."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchpool.core.metrics.totals import Totals
from batchpool.frontend.dashboard.rates import WINDOW_S, SlidingWindow, Span
from tests.unit.frontend.dashboard.counted import block, totals

BATCHES = "batches_total"


def batches(full: int, idle: int = 0, model: str = "m") -> Totals:
    words = block("batcher", (BATCHES, ("full",), full), (BATCHES, ("idle",), idle))
    return totals(("batcher", (model, "infer"), words))


def test_one_reading_tells_no_rate() -> None:
    span = SlidingWindow().add(100.0, batches(7))
    assert span.seconds == 0
    assert span.rate_per_s(BATCHES, model="m") is None
    assert span.rises(BATCHES, "reason", model="m") == {}
    assert span.histogram("queue_seconds", model="m").quantile(0.5) is None


def test_rates_and_rises_are_of_the_time_between() -> None:
    window = SlidingWindow()
    window.add(100.0, batches(7, 1))
    span = window.add(102.0, batches(17, 1))
    assert span.rate_per_s(BATCHES, model="m") == 5
    assert span.rate_per_s(BATCHES, model="m", reason="idle") == 0
    assert span.rate_per_s(BATCHES, model="other") == 0
    assert span.rises(BATCHES, "reason", model="m") == {"full": 10}


def test_percentiles_are_of_the_time_between() -> None:
    def times(*values: float) -> Totals:
        return totals(
            ("frontend", ("m",), block("frontend", times={"http_request_seconds": values}))
        )

    before = [9.0] * 1000
    window = SlidingWindow()
    window.add(0.0, times(*before))
    span = window.add(1.0, times(*before, *[0.0015] * 98, 0.15, 0.15))
    told = span.histogram("http_request_seconds", model="m")
    assert told.count == 100
    assert told.quantile(0.5) == pytest.approx(0.001 + 0.001 * 50 / 98)
    assert 0.1 < (told.quantile(0.99) or 0) <= 0.2


def test_counts_that_went_back_are_no_negative_ones() -> None:
    """A model that is served again under its name begins at zero."""
    window = SlidingWindow()
    window.add(0.0, batches(70))
    span = window.add(1.0, batches(3))
    assert span.rate_per_s(BATCHES, model="m") == 0
    assert span.rises(BATCHES, "reason", model="m") == {}


@settings(deadline=None)
@given(st.lists(st.floats(0.001, 30), min_size=1, max_size=40))
def test_the_window_is_as_short_as_it_may_be(steps_s: list[float]) -> None:
    """Never longer than WINDOW_S and one reading more; the whole past while that is shorter."""
    window, now_s, past = SlidingWindow(), 0.0, []
    for number, step_s in enumerate(steps_s):
        now_s += step_s
        past.append(now_s)
        span = window.add(now_s, batches(number))
        assert isinstance(span, Span)
        starts = [at_s for at_s in past[:-1] if now_s - at_s >= WINDOW_S]
        start_s = starts[-1] if starts else past[0]
        assert span.seconds == pytest.approx(now_s - start_s)
        assert span.rises(BATCHES, "reason", model="m").get("full", 0) == number - past.index(
            start_s
        )


def test_what_was_seen_long_ago_is_forgotten() -> None:
    window = SlidingWindow()
    window.add(0.0, batches(1))
    window.clear()
    assert window.add(3600.0, batches(5)).seconds == 0


def test_a_span_of_each_model() -> None:
    def reading(first: int, second: int) -> Totals:
        return totals(
            ("batcher", ("a", "infer"), block("batcher", (BATCHES, ("full",), first))),
            ("batcher", ("b", "infer"), block("batcher", (BATCHES, ("idle",), second))),
            ("process", ("batcher",), block("process", ("process_up", (), 1))),
        )

    then = totals(("batcher", ("a", "infer"), block("batcher", (BATCHES, ("full",), 1))))
    spans = Span(reading(3, 7), then, 2.0).by_model()
    assert set(spans) == {"a", "b"}
    assert spans["a"].rises(BATCHES, "reason") == {"full": 2}
    assert spans["b"].rises(BATCHES, "reason") == {"idle": 7}, "it is new"
    assert spans["b"].rate_per_s(BATCHES, model="b") == 3.5
    assert spans["b"].rate_per_s(BATCHES, model="a") == 0
