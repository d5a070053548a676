"""The lines of an input, whatever its bytes are."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from batchpool.batches import line_file
from batchpool.batches.line_file import LineFile

BYTES = st.binary(max_size=60).map(lambda raw: raw.replace(b"z", b"\n").replace(b"y", b"\r\n"))


def test_blank_lines_are_passed_over_a_few_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "in"
    path.write_bytes(b"\n" * 10_000 + b"a")
    with LineFile(path) as reader:
        assert reader.next_lines(1, 1) == []
        assert (reader.ended, reader.lines) == (False, 4096)
    assert [(number, raw) for number, _, raw in lines_from(path, 0, 0)] == [(10_001, b"a")]


def lines_from(path: Path, offset: int, lines: int) -> list[tuple[int, int, bytes | None]]:
    found: list[tuple[int, int, bytes | None]] = []
    with LineFile(path, offset, lines) as reader:
        while not reader.ended:
            found += map(tuple, reader.next_lines(2, 10))  # type: ignore[arg-type]
    return found


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(raw=BYTES)
@example(raw=b"\xef\xbb\xbf")
@example(raw=b"\xef\xbb\xbf\na\n\xef\xbb\xbfb")
def test_reading_goes_on_from_any_line_as_if_it_had_not_stopped(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "in"
    path.write_bytes(raw)
    whole = lines_from(path, 0, 0)
    lines = raw.removeprefix(b"\xef\xbb\xbf").split(b"\n")  # without the byte order mark
    assert [line for _, _, line in whole] == [line.rstrip(b"\r") for line in lines if line.strip()]
    for number, end, _ in whole:
        assert lines_from(path, end, number) == [each for each in whole if each[0] > number]


def test_a_line_that_is_too_long_is_passed_over_and_not_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_file, "MOST_LINE_BYTES", 10)
    monkeypatch.setattr(line_file, "_READ_BYTES", 16)
    path = tmp_path / "in"
    path.write_bytes(b"a" * 10 + b"\n" + b"b" * 11 + b"\n" + b"c" * 1000 + b"\nlast\n" + b"d" * 50)
    found = lines_from(path, 0, 0)
    assert [line for _, _, line in found] == [b"a" * 10, None, None, b"last", None]
    assert [number for number, _, _ in found] == [1, 2, 3, 4, 5]
    assert found[-1][1] == path.stat().st_size
