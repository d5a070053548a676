"""Tracebacks that workers keep for the dead letters of tasks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import pairwise

import pytest

from batchpool.core.metrics.segments import TRACEBACK_BYTES, TRACEBACKS_KEPT, tracebacks_layout
from batchpool.shm.segment import create
from batchpool.shm.stats.tracebacks import Tracebacks

PID = 4711


def raised(exc: BaseException) -> BaseException:
    try:
        raise exc
    except BaseException as caught:
        return caught


@pytest.fixture
def both() -> Iterator[tuple[Tracebacks, Tracebacks]]:
    """The cells as a worker has them, and as the task process has them."""
    fd = create(tracebacks_layout(), sealed=False)
    yield Tracebacks(fd), Tracebacks(fd, writable=False)
    os.close(fd)


def test_a_batch_has_its_traceback(both: tuple[Tracebacks, Tracebacks]) -> None:
    kept, found = both
    assert found.find(PID, 1, "ValueError: one") == ""
    kept.note(3, PID, raised(ValueError("one")), "ValueError: one", 1)
    kept.note(4, PID + 1, raised(KeyError("other")), "KeyError: other", 1)
    text = found.find(PID, 1, "whatever")
    assert text.startswith("Traceback (most recent call last):\n")
    assert text.endswith("ValueError: one\n")
    assert "in raised" in text
    assert "KeyError" in found.find(PID + 1, 1, "")
    assert found.find(PID + 2, 1, "ValueError: one") == ""


def test_a_series_of_like_errors_has_the_latest_and_drives_out_no_other(
    both: tuple[Tracebacks, Tracebacks],
) -> None:
    kept, found = both
    kept.note(0, PID, raised(ValueError("rare")), "ValueError: rare", 1)
    for batch in range(2, 9):
        kept.note(0, PID, raised(ValueError(f"often {batch}")), "ValueError: often", batch)
    assert "often 8" in found.find(PID, 5, "ValueError: often")
    assert "often 8" in found.find(PID, 5, "ValueError: oft"), "a lane cuts its texts"
    assert "rare" in found.find(PID, 1, "")
    assert found.find(PID, 5, "ValueError: new") == found.find(PID, 5, "") == ""


def test_the_oldest_goes(both: tuple[Tracebacks, Tracebacks]) -> None:
    kept, found = both
    for batch in range(TRACEBACKS_KEPT + 1):
        kept.note(7, PID, raised(ValueError(f"error {batch}")), f"ValueError: {batch}", batch)
    assert found.find(PID, 0, "ValueError: 0") == ""
    assert [f"error {i}" in found.find(PID, i, "") for i in range(1, TRACEBACKS_KEPT + 1)] == [
        True
    ] * TRACEBACKS_KEPT


def test_a_successor_in_the_same_row_begins_with_cells_of_its_own(
    both: tuple[Tracebacks, Tracebacks],
) -> None:
    kept, found = both
    kept.note(7, PID, raised(ValueError("same")), "ValueError: same", 1)
    kept.note(7, PID + 1, raised(ValueError("same")), "ValueError: same", 9)
    assert "same" in found.find(PID, 1, "")
    assert "same" in found.find(PID + 1, 9, "")


def test_a_long_one_keeps_its_end(both: tuple[Tracebacks, Tracebacks]) -> None:
    """However long: the messages of a chain have bounds, and so has the whole."""
    links = [raised(ValueError("ä" * 10**6)) for _ in range(9)]
    for link, cause in pairwise(links):
        link.__cause__ = cause
    kept, found = both
    kept.note(0, PID, links[0], "ValueError: " * 99, 1)
    text = found.find(PID, 1, "")
    assert text.startswith("...\n")
    assert text.endswith("ä\n")
    assert TRACEBACK_BYTES - 400 < len(text.encode()) < TRACEBACK_BYTES


def test_an_exception_tells_what_it_came_from(both: tuple[Tracebacks, Tracebacks]) -> None:
    kept, found = both
    try:
        try:
            raise KeyError("first")
        except KeyError as exc:
            raise ValueError("second") from exc
    except ValueError as caught:
        kept.note(0, PID, caught, "ValueError: second", 1)
    try:
        try:
            raise KeyError("first")
        except KeyError:
            raise TypeError("third")  # noqa: B904
    except TypeError as caught:
        kept.note(0, PID, caught, "TypeError: third", 2)
    for batch, joint, last in ((1, "direct cause", "ValueError"), (2, "handling", "TypeError")):
        first, middle, end = found.find(PID, batch, "").partition(joint)
        assert "KeyError: 'first'" in first
        assert middle
        assert last in end


def test_only_the_innermost_frames_of_a_deep_one_are_read(
    both: tuple[Tracebacks, Tracebacks],
) -> None:
    def deep(n: int) -> None:
        if n == 0:
            raise ValueError("bottom")
        deep(n - 1)

    kept, found = both
    with pytest.raises(ValueError, match="bottom") as caught:
        deep(300)
    kept.note(0, PID, caught.value, "ValueError: bottom", 1)
    assert "most recent call last" in found.find(PID, 1, "")


def test_an_exception_that_cannot_be_shown_says_so(both: tuple[Tracebacks, Tracebacks]) -> None:
    class Hidden(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    kept, found = both
    kept.note(0, PID, raised(Hidden()), "Hidden", 1)
    assert "Hidden" in found.find(PID, 1, "")


def test_a_cell_that_is_not_whole_is_none(both: tuple[Tracebacks, Tracebacks]) -> None:
    kept, found = both
    kept.note(0, PID, raised(ValueError("one")), "ValueError: one", 1)
    kept._words[:, -1] = 77
    assert found.find(PID, 1, "ValueError: one") == ""
    kept._words[0, -1] = kept._words[0, 0]
    kept._words[0, 3:5] = 2**63  # a worker may write anything
    assert found.find(PID, 1, "ValueError: one") == ""
