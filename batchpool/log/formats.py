"""The line formats of a log message: human, journal and JSON.

    human    2026-11-28 07:00:00.123 worker 0 of mlp[4711] WARNING a batch failed batch=17
    journal  <4>worker 0 of mlp WARNING a batch failed batch=17     (it adds time and pid itself)
    json     {"time": "2026-11-28T07:00:00.123456Z", "level": "warning", "logger":
             "batchpool.worker", "role": "worker", "post": "worker 0 of mlp", "pid": 4711,
             "message": "a batch failed", "batch": 17}          pure ASCII, one line a message

A message of batchpool's own has its fields in the mapping that its text is formatted with:

    _LOG.warning("a batch of %(rows)d rows failed", {"rows": 8, "batch": 17})

JSON has all fields; the other formats add those that the text does not mention. None is left out.
Untrusted texts cannot forge a message: control characters are escaped, and further lines of a
traceback or of another library's message are indented, which no message's first line is.
"""

from __future__ import annotations

import json
import logging
import math
import re
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from batchpool.core.text.escape import cut, printable

OWN = "batchpool"
_INDENT = "    "
_MOST_CHARACTERS = 2000  # of one line
_MOST_LINES = 200  # of one message
_PRIORITIES = ((logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))
_LEVELS = {
    logging.DEBUG: "DEBUG", logging.INFO: "INFO", logging.WARNING: "WARNING",
    logging.ERROR: "ERROR", logging.CRITICAL: "CRITICAL",
}  # fmt: skip
_PLAIN = re.compile(r"[!#-<>-~]+")  # a value that needs no quotes


@dataclass(frozen=True)
class LogOrigin:
    """The process that logs. slot: the place it fills, "worker 0 of mlp" ("post" in JSON)."""

    role: str
    slot: str
    pid: int


@dataclass(frozen=True)
class LogEntry:
    """One message, without references that keep other objects alive.

    fields: all of them. extra: those that the text does not mention. at_s: seconds since 1970.
    """

    at_s: float
    level: int
    logger: str
    text: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
    exception: str = ""

    @property
    def is_own(self) -> bool:
        return self.logger.partition(".")[0] == OWN


Form = Callable[[LogOrigin, LogEntry, int], list[bytes]]
"""Formats an entry as lines. The number is the most bytes of a line, its newline included."""


def entry_of(
    record: logging.LogRecord,
    *,
    with_exception: bool = True,
    around: Mapping[str, Any] = MappingProxyType({}),
) -> LogEntry:
    """The entry of a record; exceptions and arguments that cannot be formatted are replaced.

    around: fields for the entry unless the record has them itself.
    """
    try:
        text = record.getMessage()
    except Exception as exc:
        text = f"{record.msg!s:.200} (its arguments cannot be shown: {type(exc).__name__})"
    fields = dict(around)
    if isinstance(record.args, Mapping) and record.name.partition(".")[0] == OWN:
        fields |= {str(k): v for k, v in record.args.items() if v is not None}
    pattern = str(record.msg)
    extra = {k: v for k, v in fields.items() if f"%({k})" not in pattern}
    exception = _traceback_of(record) if with_exception else ""
    return LogEntry(record.created, record.levelno, record.name, text, fields, extra, exception)


def _level_name(entry: LogEntry) -> str:
    """The name of its level; a model that renames levels names only those of its own messages."""
    known = _LEVELS.get(entry.level) if entry.is_own else None
    return known or printable(logging.getLevelName(entry.level))


def _traceback_of(record: logging.LogRecord) -> str:
    text = ""
    if record.exc_info and record.exc_info[1] is not None:
        try:
            text = "".join(traceback.format_exception(record.exc_info[1])).rstrip()
        except Exception as exc:
            text = f"{record.exc_info[0]} (its traceback cannot be shown: {type(exc).__name__})"
    if record.stack_info:
        text = f"{text}\n{record.stack_info}".strip()
    return text


# -- JSON ------------------------------------------------------------------------------------


def json_form(origin: LogOrigin, entry: LogEntry, most_bytes: int) -> list[bytes]:
    """One JSON object. If it is too long, the middles of its texts are cut out."""
    seconds, micro = divmod(round(entry.at_s * 1e6), 1_000_000)
    found: dict[str, Any] = {
        "time": f"{_utc(seconds)}.{micro:06}Z",
        "level": _level_name(entry).lower(),
        "logger": entry.logger,
        "role": origin.role,
        "post": origin.slot,
        "pid": origin.pid,
        "message": entry.text,
    }
    for name, value in entry.fields.items():
        found.setdefault(name, value)
    if entry.exception:
        found["exception"] = entry.exception
    line = _dumped(found)
    most = most_bytes
    while len(line) > most_bytes and most > 1:
        most = most * 3 // 4
        line = _dumped({k: cut(v, most) if isinstance(v, str) else v for k, v in found.items()})
    return [line]


def _dumped(found: Mapping[str, Any]) -> bytes:
    text = _ENCODER.encode({k: _json_value(v) for k, v in found.items()})
    return text.replace("\x7f", "\\u007f").encode("ascii") + b"\n"


def _json_value(value: object) -> object:
    """The value as every JSON parser accepts it: no NaN, infinity or lone surrogate."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, str) and not value.isascii():
        return value.encode(errors="backslashreplace").decode()
    return value


def _text_of(value: object) -> str:
    try:
        return str(value)
    except Exception:
        return f"({type(value).__name__} that cannot be shown)"


_ENCODER = json.JSONEncoder(default=_text_of)


@lru_cache(2)
def _utc(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))


@lru_cache(2)
def _local(seconds: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


# -- text lines ------------------------------------------------------------------------------


def human_form(origin: LogOrigin, entry: LogEntry, most_bytes: int) -> list[bytes]:
    """One line and indented further ones; the time is local."""
    head = (
        f"{_local(int(entry.at_s))}.{int(entry.at_s * 1000) % 1000:03} {origin.slot}[{origin.pid}] "
    )
    return _lines(head, "", entry, most_bytes)


def journal_form(origin: LogOrigin, entry: LogEntry, most_bytes: int) -> list[bytes]:
    """One line and indented further ones, each with a priority in front as in sd-daemon(3)."""
    priority = next((n for level, n in _PRIORITIES if entry.level >= level), 7)
    return _lines(f"{origin.slot} ", f"<{priority}>", entry, most_bytes)


def _lines(head: str, prefix: str, entry: LogEntry, most_bytes: int) -> list[bytes]:
    level = _level_name(entry)
    name = "" if entry.is_own else f"{printable(entry.logger)}: "
    first, *more = [entry.text] if entry.is_own else entry.text.split("\n")
    fields = "".join(f" {k}={_word(v)}" for k, v in entry.extra.items())
    lines = [f"{prefix}{head}{level} {name}{cut(printable(first), _MOST_CHARACTERS)}{fields}"]
    more += entry.exception.split("\n") if entry.exception else []
    if len(more) > _MOST_LINES:
        left_out = f"[{len(more) - _MOST_LINES} lines left out]"
        more = [*more[: _MOST_LINES // 2], left_out, *more[-_MOST_LINES // 2 :]]
    for line in more:
        lines.append(f"{prefix}{_INDENT}{cut(printable(line), _MOST_CHARACTERS)}")
    return [_within(line, most_bytes) for line in lines]


def _word(value: object) -> str:
    """A field's value as one word, in quotes if it is not plain."""
    text = f"{value:.6g}" if isinstance(value, float) else _text_of(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(cut(text, _MOST_CHARACTERS))


def _within(line: str, most_bytes: int) -> bytes:
    raw = line.encode(errors="backslashreplace")
    return raw[: most_bytes - 1] + b"\n"
