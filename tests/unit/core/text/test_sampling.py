"""Samples: the right share, and the same verdict on the same name everywhere."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchpool.core.text.sampling import TraceSample

shares = st.floats(0, 1)


@given(shares, st.binary(min_size=1))
def test_whoever_asks_gets_the_same_verdict_on_a_name(share: float, name: bytes) -> None:
    here, there = TraceSample(share), TraceSample(share)
    there.has(b"")
    assert here.has(name) == here.has(name) == there.has(name)


@given(shares, shares, st.binary(min_size=1))
def test_a_larger_share_has_all_of_a_smaller_one(a: float, b: float, name: bytes) -> None:
    assert TraceSample(min(a, b)).has(name) <= TraceSample(max(a, b)).has(name)


@given(st.binary())
def test_the_ends_are_none_and_all(name: bytes) -> None:
    assert not TraceSample(0).has(name)
    assert TraceSample(1).has(name)


@pytest.mark.parametrize("share", [0.01, 0.1, 0.5, 0.9])
def test_of_many_names_it_has_about_its_share(share: float) -> None:
    sample = TraceSample(share)
    found = sum(sample.has(b"request-%d" % i) for i in range(20_000))
    assert found == pytest.approx(20_000 * share, rel=0.1)


@given(st.integers(1, 100))
def test_of_requests_without_a_name_it_counts(every: int) -> None:
    sample = TraceSample(1 / every)
    found = sum(sample.has(b"") for _ in range(1000))
    assert found in (1000 // every, 1000 // every - 1, 1000 // every + 1)
