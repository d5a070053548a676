"""The lines of an input, whatever its bytes are."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from batchpool.batches import line_file
from batchpool.batches.line_file import LineFile

BYTES = st.binary(max_size=60).map(lambda raw: raw.replace(b"z", b"\n").replace(b"y", b"\r\n"))


def lines_from(path: Path, offset: int, lines: int) -> list[tuple[int, int, bytes | None]]:
    found: list[tuple[int, int, bytes | None]] = []
    with LineFile(path, offset, lines) as reader:
        while some := reader.next_lines(2, 10):
            found += map(tuple, some)  # type: ignore[arg-type]
    return found


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(raw=BYTES)
def test_reading_goes_on_from_any_line_as_if_it_had_not_stopped(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "in"
    path.write_bytes(raw)
    whole = lines_from(path, 0, 0)
    assert [line for _, _, line in whole] == [
        line.rstrip(b"\r") for line in raw.split(b"\n") if line.strip()
    ]
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
