"""Numbers on the command line."""

from __future__ import annotations

import argparse

import pytest

from batchpool.cli.numbers import seconds_to, whole_number


@pytest.mark.parametrize("text", ["0", "-1", "1.0", "", "²", "1001", "9" * 10_000, "1_0", " 1"])
def test_a_whole_number_is_from_one_to_the_most(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=r"is not a whole number from 1 to 1000$"):
        whole_number(1000)(text)


def test_the_ends_are_taken() -> None:
    parse = whole_number(1000)
    assert [parse(text) for text in ("1", "1000", "0007")] == [1, 1000, 7]
    parse_s = seconds_to(60)
    assert [parse_s(text) for text in ("0", "60", "0.5", "1e1")] == [0, 60, 0.5, 10]


@pytest.mark.parametrize("text", ["-1", "nan", "inf", "soon", "60.1"])
def test_a_length_of_time_has_an_end(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is not a number of seconds from 0 to 60"):
        seconds_to(60)(text)
