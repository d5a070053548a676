"""Formats of a log message: fields, times, priorities, and that no text can forge a line."""

from __future__ import annotations

import json
import logging
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchpool.log.formats import (
    Form,
    LogEntry,
    LogOrigin,
    entry_of,
    human_form,
    journal_form,
    json_form,
)

ORIGIN = LogOrigin("worker", "worker 0 of mlp", 4711)
AT_S = 1795849200.123456  # 2026-11-28 07:00:00 UTC
MOST = 32 * 1024
FORMS: list[Form] = [human_form, journal_form, json_form]
any_text = st.text(st.characters(exclude_categories=()), max_size=300)


def entry(text: str = "a batch failed", **more: Any) -> LogEntry:
    return LogEntry(AT_S, more.pop("level", logging.WARNING), "batchpool.worker", text, **more)


def record(message: object, *args: object, name: str = "batchpool.worker") -> logging.LogRecord:
    return logging.LogRecord(name, logging.WARNING, "a.py", 1, message, args, None)


def written(form: Form, said: LogEntry, most_bytes: int = MOST) -> str:
    return b"".join(form(ORIGIN, said, most_bytes)).decode()


def an_exception() -> Exception:
    try:
        raise ValueError("bad row\nERROR forged")
    except ValueError as exc:
        return exc


def with_exception() -> LogEntry:
    failed = record("it failed")
    failed.exc_info = (ValueError, (exc := an_exception()), exc.__traceback__)
    return entry_of(failed)


# -- JSON --------------------------------------------------------------------------------------


def test_json_has_who_what_and_when() -> None:
    said = entry(fields={"rows": 8, "batch": 17, "model": "mlp", "duration_ms": 1.25})
    assert json.loads(written(json_form, said)) == {
        "time": "2026-11-28T07:00:00.123456Z",
        "level": "warning",
        "logger": "batchpool.worker",
        "role": "worker",
        "post": "worker 0 of mlp",
        "pid": 4711,
        "message": "a batch failed",
        "rows": 8,
        "batch": 17,
        "model": "mlp",
        "duration_ms": 1.25,
    }


def test_a_traceback_is_one_string_of_the_same_object() -> None:
    lines = json_form(ORIGIN, with_exception(), MOST)
    assert len(lines) == 1
    exception = json.loads(lines[0])["exception"]
    assert exception.startswith("Traceback (most recent call last):\n")
    assert exception.endswith("ValueError: bad row\nERROR forged")


@given(any_text, any_text, any_text)
def test_json_is_one_ascii_line_that_gives_the_texts_back(
    text: str, value: str, exception: str
) -> None:
    said = entry(text, fields={"request_id": value}, exception=exception)
    (line,) = json_form(ORIGIN, said, MOST)
    assert line.endswith(b"\n")
    assert all(32 <= byte < 127 for byte in line[:-1])
    found = json.loads(line)
    whole = [s.encode(errors="backslashreplace").decode() for s in (text, value, exception)]
    assert [found["message"], found["request_id"], found.get("exception", "")] == whole


def test_fields_cannot_take_the_place_of_the_origin() -> None:
    said = entry(fields={"level": "debug", "pid": 1, "message": "forged"})
    found = json.loads(written(json_form, said))
    assert (found["level"], found["pid"], found["message"]) == ("warning", 4711, "a batch failed")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_numbers_that_json_has_not_are_texts(value: float) -> None:
    line = written(json_form, entry(fields={"duration_ms": value}))
    assert json.loads(line, parse_constant=pytest.fail)["duration_ms"] == str(value)


def test_values_of_any_type_can_be_shown() -> None:
    class Mute:
        def __str__(self) -> str:
            raise RuntimeError

    line = written(json_form, entry(fields={"a": b"raw", "b": Mute(), "c": [1, None]}))
    found = json.loads(line)
    assert (found["a"], found["b"], found["c"]) == (
        "b'raw'",
        "(Mute that cannot be shown)",
        [1, None],
    )


@given(any_text.map(lambda text: text * 200), st.integers(600, 4096))
def test_a_long_message_is_cut_and_still_parses(text: str, most_bytes: int) -> None:
    said = entry(text, exception=text, fields={"error": text})
    (line,) = json_form(ORIGIN, said, most_bytes)
    assert len(line) <= most_bytes
    assert json.loads(line)["pid"] == 4711


def test_the_time_is_exact_at_the_turn_of_a_second() -> None:
    said = LogEntry(1795849199.9999999, logging.INFO, "batchpool.worker", "late")
    assert json.loads(written(json_form, said))["time"] == "2026-11-28T07:00:00.000000Z"


# -- lines for people --------------------------------------------------------------------------


def test_a_line_for_people() -> None:
    said = entry(extra={"batch": 17, "error": "no room", "took_s": 0.1234567, "empty": ""})
    stamp = datetime.fromtimestamp(AT_S).strftime("%Y-%m-%d %H:%M:%S")
    assert written(human_form, said) == (
        f"{stamp}.123 worker 0 of mlp[4711] WARNING a batch failed"
        ' batch=17 error="no room" took_s=0.123457 empty=""\n'
    )


@pytest.mark.parametrize(
    ("level", "priority"),
    [
        (logging.CRITICAL, 3),
        (logging.ERROR, 3),
        (logging.WARNING, 4),
        (logging.INFO, 6),
        (logging.DEBUG, 7),
    ],
)
def test_the_journal_gets_a_priority(level: int, priority: int) -> None:
    line = written(journal_form, entry(level=level))
    name = logging.getLevelName(level)
    assert line == f"<{priority}>worker 0 of mlp {name} a batch failed\n"


def test_in_the_journal_every_line_of_a_traceback_has_its_priority() -> None:
    first, *more = written(journal_form, with_exception()).splitlines()
    assert first == "<4>worker 0 of mlp WARNING it failed"
    assert more[0] == "<4>    Traceback (most recent call last):"
    assert more[-2:] == ["<4>    ValueError: bad row", "<4>    ERROR forged"]


def test_the_lines_of_another_library_are_indented() -> None:
    said = LogEntry(AT_S, logging.ERROR, "uvicorn.error", "bad\nERROR forged")
    first, second = written(human_form, said).splitlines()
    assert first.endswith("ERROR uvicorn.error: bad")
    assert second == "    ERROR forged"


@pytest.mark.parametrize("form", [human_form, journal_form])
@given(text=any_text, value=any_text, name=any_text, exception=any_text)
def test_no_text_forges_a_line_or_acts_on_a_terminal(
    form: Form, text: str, value: str, name: str, exception: str
) -> None:
    texts = {"extra": {"request_id": value}, "exception": exception}
    for logger in ("batchpool.worker", name):
        said = LogEntry(AT_S, logging.ERROR, logger, text, **texts)
        first, *more = written(form, said).removesuffix("\n").split("\n")
        prefix = "<3>" if form is journal_form else ""
        assert first.startswith(prefix)
        assert all(line.startswith(f"{prefix}    ") for line in more)
        assert all(line.isprintable() for line in (first, *more))


@given(any_text)
def test_a_value_cannot_be_taken_for_two(value: str) -> None:
    line = written(human_form, entry(extra={"path": value, "status": 200}))
    assert line.endswith(" status=200\n")
    shown = line.partition(" path=")[2].removesuffix(" status=200\n")
    whole = shown.startswith('"') and json.loads(shown) == value
    assert whole or (shown == value and " " not in value and "=" not in value)


@pytest.mark.parametrize("form", [human_form, journal_form])
def test_long_texts_lose_their_middles(form: Form) -> None:
    said = entry("x" * 5000 + "end", exception="\n".join(f"line {i}" for i in range(1000)))
    lines = written(form, said).splitlines()
    assert "[3003 characters left out]" in lines[0]
    assert lines[0].endswith("end")
    assert len(lines) == 202
    assert "[800 lines left out]" in lines[101]
    assert lines[-1].endswith("line 999")
    assert all(len(line) <= 100 for line in form(ORIGIN, said, 100))


# -- what a record says ------------------------------------------------------------------------


def test_a_message_brings_its_fields() -> None:
    said = entry_of(record("%(rows)d rows failed", {"rows": 8, "batch": 17, "code": None}))
    assert (said.text, said.fields, said.extra) == (
        "8 rows failed",
        {"rows": 8, "batch": 17},
        {"batch": 17},
    )


def test_another_librarys_mapping_is_no_fields() -> None:
    said = entry_of(record("%(pid)d is up", {"pid": 5}, name="uvicorn.error"))
    assert (said.text, said.fields) == ("5 is up", {})


def test_arguments_that_do_not_fit_are_no_problem() -> None:
    assert entry_of(record("%d rows", "many")).text == (
        "%d rows (its arguments cannot be shown: TypeError)"
    )


def test_an_exception_that_cannot_be_shown_is_no_problem() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise SystemExit("not even this")

    failed = record("it failed")
    failed.exc_info = (Mute, Mute(), None)
    for form in FORMS:
        assert "it failed" in written(form, entry_of(failed))


def test_repeats_leave_the_traceback_out() -> None:
    failed = record("it failed")
    exc = an_exception()
    failed.exc_info = (ValueError, exc, exc.__traceback__)
    assert entry_of(failed, with_exception=False).exception == ""
