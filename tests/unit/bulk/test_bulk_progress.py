"""The progress of a bulk run: of rows that have ended, and of those that were there."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from batchpool.bulk import run as bulk_run
from batchpool.bulk.lines import CsvReader, LineReader
from batchpool.bulk.progress import Progress
from batchpool.bulk.sinks import Committed
from tests.unit.bulk.files import Run, texts, write


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.mark.parametrize(
    ("total", "before", "share", "line"),
    [
        (3_000, 0, None, "200 of 3,000 rows, 20 rows/s, 2:20 left"),
        (None, 0, 0.1, "200 rows, 10% of the input, 20 rows/s, 1:30 left"),
        (None, 0, None, "200 rows, 20 rows/s"),
        (3_000, 200, None, "400 of 3,000 rows, 20 rows/s, 2:10 left"),
        (None, 600, 0.2, "800 rows, 20% of the input, 20 rows/s, 2:40 left"),
    ],
)
def test_the_line_is_of_rows_that_have_ended(
    total: int | None, before: int, share: float | None, line: str
) -> None:
    clock = Clock()
    progress = Progress(total, before, clock=clock)
    clock.now_s = 10.0
    progress.rows += 200
    assert progress.line(share) == line


def test_a_chunk_knows_the_share_of_the_input_up_to_it(run: Run) -> None:
    write("in.jsonl", "".join(json.dumps({"text": "t"}) + "\n" for _ in range(100)))
    for start in (0, 40):
        shares = [chunk.share for chunk in LineReader(["in.jsonl"]).chunks(20, start)]
        assert shares == [at / 100 for at in range(start + 20, 101, 20)]
    write("in.csv", "a\n" + "1\n" * 40_000)
    shares = [chunk.share for chunk in CsvReader(["in.csv"]).chunks(20_000, 0)]
    assert shares == [pytest.approx(0.5, abs=0.15), 1.0]


def test_a_run_that_goes_on_says_from_where(run: Run) -> None:
    write("in.jsonl", texts(40) + '{"text": "bad"}\n')
    flags = ("echo", "in.jsonl", "-o", "out.jsonl", "--chunk-rows", "20", "--on-error")
    status, said = run(*flags, "stop")
    assert (status, "going on" in said) == (1, False)
    _, said = run(*flags, "skip")
    assert "going on after 2 parts with 40 rows in out.jsonl.parts" in said
    assert "41 rows, 1 of them bad" in said


def test_one_row_is_said_as_one(run: Run) -> None:
    write("in.jsonl", texts(1))
    _, said = run("echo", "in.jsonl", "-o", "out.jsonl")
    assert said.startswith("1 row; ")


def test_the_rate_ends_with_the_last_part_and_the_join_is_told_by_itself(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("in.jsonl", texts(3))
    events: list[str] = []
    clock_s = iter([0.0, 2.5])
    monkeypatch.setattr(bulk_run, "_now_s", lambda: next(clock_s))

    def noted(kind: type, name: str) -> None:
        real = getattr(kind, name)

        def call(self: Any) -> Any:
            events.append(name)
            return real(self)

        monkeypatch.setattr(kind, name, call)

    noted(Committed, "settle")
    noted(Committed, "finish")
    noted(Progress, "rate")
    _, said = run("echo", "in.jsonl", "-o", "out.jsonl")
    assert events == ["settle", "rate", "finish"]
    assert said.splitlines()[-1].endswith(" rows/s, joined in 2.5 s")


def test_threads_take_turns_quickly_while_a_run_lasts(run: Run) -> None:
    """The thread that has rows under way is not held up by those that read and write lines."""
    before_s = sys.getswitchinterval()
    seen: list[float] = []

    def at_submit(number: int) -> None:
        seen.append(sys.getswitchinterval())

    write("in.jsonl", texts(5))
    run("echo", "in.jsonl", "-o", "out.jsonl", at_submit=at_submit)
    assert seen == [pytest.approx(0.001)] * 2
    assert sys.getswitchinterval() == before_s
