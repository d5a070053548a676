"""Set-up of the log, the same for every process of the pool.

Everything goes to stderr through one `LogStream`: batchpool's loggers, those of uvicorn and of a
model's libraries, Python's warnings, and uncaught exceptions. Text that a model prints is not part
of it. A model may configure the module `logging` as it likes: that decides about its own messages,
and batchpool's (`batchpool/log/own_loggers.py`) come out as before.

Repeated warnings and errors are logged a few times and then counted
(`batchpool/core/text/log_limits.py`). Those from the same line of code with the same exception,
model and error code are repeats. The supervisor's own are all logged: each is about a process that
started or ended, which takes time.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from typing import Any

from batchpool.core.text.log_limits import LogLimiter
from batchpool.log.formats import (
    Form,
    LogEntry,
    LogOrigin,
    entry_of,
    human_form,
    journal_form,
    json_form,
)
from batchpool.log.own_loggers import protect, set_least
from batchpool.log.sink import LogSink, is_journal

_UNLIMITED = "batchpool.supervisor"
_STDERR = 2

Later = Callable[[float, Callable[[], None]], None]


def _later(delay_s: float, call: Callable[[], None]) -> None:
    timer = threading.Timer(delay_s, call)
    timer.daemon = True
    timer.start()


class LogStream(logging.Handler):
    """Writes records to a sink without raising or waiting.

    clock_s: a monotonic clock in seconds. later: calls a function after a time in seconds.
    context: returns the fields that every message gets.
    """

    def __init__(
        self,
        sink: LogSink,
        form: Form,
        origin: LogOrigin,
        clock_s: Callable[[], float] = time.monotonic,
        later: Later = _later,
    ) -> None:
        super().__init__()
        self._sink = sink
        self.form = form
        self._origin = origin
        self._clock_s = clock_s
        self._later = later
        self._repeats: LogLimiter[LogEntry] = LogLimiter()
        self.context: Callable[[], Mapping[str, Any]] = dict
        self._waits = False  # a call at the end of a period is due
        self._lost = 0  # messages that the sink did not take

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, or count it as a repeat or as lost."""
        try:
            self._take(record)
        except Exception:  # an error of the log must not end the work
            self._lost += 1

    def _take(self, record: logging.LogRecord) -> None:
        if record.levelno < logging.WARNING or record.name == _UNLIMITED:
            self._write(entry_of(record, around=self.context()))
            return
        now_s = self._clock_s()
        for count, last in self._repeats.due(now_s):
            self._write(self._count(count, last))
        kind = _kind_of(record)
        place = self._repeats.place(kind, now_s)
        entry = entry_of(record, with_exception=place == 1, around=self.context())
        if place:
            self._write(entry)
            return
        self._repeats.hold(kind, entry)
        self._wait()

    def _count(self, count: int, last: LogEntry) -> LogEntry:
        """An entry about repeats that were not written. last: the last one of them."""
        text = f"{count} more like this in {self._repeats.period_s:g} s; the last: {last.text}"
        more = {"repeats": count}
        return replace(last, text=text, fields={**last.fields, **more})

    def _wait(self) -> None:
        if not self._waits:
            self._later(self._repeats.period_s, self._on_time)
            self._waits = True

    def _on_time(self) -> None:
        self.acquire()
        try:
            self._waits = False
            for count, last in self._repeats.due(self._clock_s()):
                self._write(self._count(count, last))
            if self._repeats.is_holding():
                self._wait()
        finally:
            self.release()

    def close(self) -> None:
        """Write the counts of repeats that are held."""
        for count, last in self._repeats.rest(self._clock_s()):
            self._write(self._count(count, last))
        super().close()

    def _write(self, entry: LogEntry) -> None:
        if self._lost:
            text = f"{self._lost} messages are lost: stderr did not take them"
            notice = LogEntry(entry.at_s, logging.WARNING, "batchpool.log", text)
            if self._put(notice):
                self._lost = 0
        if not self._put(entry):
            self._lost += 1

    def _put(self, entry: LogEntry) -> bool:
        return self._sink.write(self.form(self._origin, entry, self._sink.most_bytes))


class _RootForwarder(logging.Handler):
    """The handler of the root logger, which a model may replace, close or change: it only passes
    records on to the stream."""

    def __init__(self, stream: LogStream) -> None:
        super().__init__()
        self._stream = stream

    def emit(self, record: logging.LogRecord) -> None:
        self._stream.handle(record)


_streams: list[LogStream] = []  # of this process: none, or one since `set_up`


def _kind_of(record: logging.LogRecord) -> Hashable:
    if record.name == "py.warnings":  # all come from one line of code, with different texts
        return record.name, str(record.args)
    fields = record.args if isinstance(record.args, dict) else {}
    exception = record.exc_info[0] if record.exc_info else None
    name = None if exception is None else exception.__qualname__
    place = record.name, record.levelno, record.pathname, record.lineno
    return *place, name, fields.get("model"), fields.get("code")


def set_up(role: str, slot: str, level: str, log_format: str) -> None:
    """Log to this process's stderr from now on; called once, at its start.

    slot: the place that the process fills. log_format: as in the configuration.
    """
    if sys.stderr is None:  # started without stderr; descriptor 2 may be anything by now
        return
    stream = LogStream(LogSink(_STDERR), _form_of(log_format), LogOrigin(role, slot, os.getpid()))
    _streams[:] = [stream]
    atexit.register(stream.close)  # `logging` may have been made to forget it
    logging.getLogger().handlers[:] = [_RootForwarder(stream)]
    protect(stream, logging.INFO)
    set_level(level)
    logging.raiseExceptions = False
    logging.captureWarnings(True)
    _log_uncaught(logging.getLogger(f"batchpool.{role}"))


def set_level(level: str) -> None:
    """Log messages of this level and above from now on, as `log_level` in the configuration."""
    set_least(logging.getLevelNamesMapping()[level.upper()])
    logging.getLogger().setLevel(level.upper())


def add_fields(context: Callable[[], Mapping[str, Any]]) -> None:
    """Add fields to every message of this process. context: returns them."""
    for stream in _streams:
        stream.context = context


def _form_of(log_format: str) -> Form:
    if log_format == "json":
        return json_form
    if log_format == "auto" and is_journal(_STDERR, os.environ):
        return journal_form
    return human_form


def is_machine_readable() -> bool:
    """True when a program reads this log, so that nothing else should be written to stderr."""
    return any(stream.form is not human_form for stream in _streams)


def _log_uncaught(logger: logging.Logger) -> None:
    """Log uncaught exceptions of the main thread, of other threads, and of finalizers."""

    def uncaught(kind: type[BaseException], exc: BaseException, trace: Any) -> None:
        if issubclass(kind, KeyboardInterrupt):
            sys.__excepthook__(kind, exc, trace)
        else:
            logger.critical("this process ends: nobody caught an exception", exc_info=exc)

    def uncaught_in_thread(args: threading.ExceptHookArgs) -> None:
        if args.exc_value is not None and not isinstance(args.exc_value, SystemExit):
            name = args.thread.name if args.thread else "?"
            logger.error(
                "thread %s ended: nobody caught an exception", name, exc_info=args.exc_value
            )

    def unraisable(args: Any) -> None:
        logger.error(
            "exception ignored: %s", args.err_msg or repr(args.object), exc_info=args.exc_value
        )

    sys.excepthook = uncaught
    threading.excepthook = uncaught_in_thread
    sys.unraisablehook = unraisable
