"""The log of a process: what repeats is counted, what is lost is told, nothing escapes it."""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from batchpool.core.text.log_limits import FIRST, PERIOD_S
from batchpool.log.formats import LogOrigin, json_form
from batchpool.log.setup import LogStream
from batchpool.log.sink import LogSink

ROOT = Path(__file__).resolve().parents[3]


class SinkDouble:
    """Keeps lines, or loses them."""

    most_bytes = 4096

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []
        self.is_full = False

    def write(self, lines: list[bytes]) -> bool:
        if self.is_full:
            return False
        self.lines += [json.loads(line) for line in lines]
        return True

    @property
    def texts(self) -> list[str]:
        return [line["message"] for line in self.lines]


class Log:
    """A stream under a clock and a timer of the test's own, and a logger that leads to it."""

    def __init__(self, name: str = "batchpool.worker") -> None:
        self.sink = SinkDouble()
        self.now_s = 1000.0
        self.timers: list[tuple[float, Callable[[], None]]] = []
        origin = LogOrigin("worker", "worker 0 of mlp", 4711)
        sink = cast(LogSink, self.sink)
        self.stream = LogStream(sink, json_form, origin, lambda: self.now_s, self._later)
        self.logger = logging.Logger(name)
        self.logger.addHandler(self.stream)

    def _later(self, delay_s: float, call: Callable[[], None]) -> None:
        self.timers.append((self.now_s + delay_s, call))

    def wait(self, for_s: float) -> None:
        self.now_s += for_s
        due = [call for at_s, call in self.timers if at_s <= self.now_s]
        self.timers = [timer for timer in self.timers if timer[0] > self.now_s]
        for call in due:
            call()

    def fail(self, exc: Exception, model: str = "mlp", **more: Any) -> None:
        fields = {"error": str(exc), "model": model, **more}
        self.logger.warning("a batch failed: %(error)s", fields, exc_info=exc)


def test_a_model_that_always_raises_does_not_flood_the_log() -> None:
    log = Log()
    for i in range(1000):
        log.fail(ValueError(f"row {i}"), batch=i)
    assert log.sink.texts == [f"a batch failed: row {i}" for i in range(FIRST)]
    # the traceback of the first will do
    assert [bool(line.get("exception")) for line in log.sink.lines] == [True] + [False] * 4
    log.wait(PERIOD_S)
    count = log.sink.lines[-1]
    assert count["message"] == (
        f"{1000 - FIRST} more like this in 10 s; the last: a batch failed: row 999"
    )
    assert (count["repeats"], count["batch"], count["level"]) == (1000 - FIRST, 999, "warning")
    assert log.timers == []


def test_the_count_comes_every_period_while_it_goes_on() -> None:
    log = Log()
    for i in range(300):
        log.fail(ValueError(str(i)))
        log.wait(0.125)
    log.wait(PERIOD_S)
    counts = [line["repeats"] for line in log.sink.lines if "repeats" in line]
    assert counts == [80 - FIRST, 80, 80, 60]


def test_kinds_differ_by_exception_and_by_model() -> None:
    log = Log()
    for _ in range(FIRST + 1):
        log.fail(ValueError("bad"))
    log.fail(KeyError("other"))
    log.fail(ValueError("bad"), model="other")
    assert len(log.sink.lines) == FIRST + 2


def test_what_is_no_warning_is_never_held() -> None:
    log = Log()
    for i in range(50):
        log.logger.info("request %d", i)
    assert len(log.sink.lines) == 50


def test_the_supervisor_says_all() -> None:
    log = Log("batchpool.supervisor")
    for i in range(50):
        log.logger.error("worker 0 of mlp (pid %d) was killed", i)
    assert len(log.sink.lines) == 50


def test_pythons_warnings_are_told_apart_by_their_texts() -> None:
    log = Log("py.warnings")
    for i in range(20):
        log.logger.warning("%s", f"a.py:{i}: UserWarning: old")
    for _ in range(20):
        log.logger.warning("%s", "a.py:0: UserWarning: old")
    assert len(log.sink.lines) == 20 + FIRST - 1


def test_every_message_has_the_fields_of_its_context() -> None:
    log = Log("uvicorn.error")
    log.stream.context = lambda: {"request_id": "mine", "model": "mlp"}
    log.logger.error("Exception in %s", "the application")
    log.stream.context = dict
    log.logger.error("elsewhere")
    assert [line.get("request_id") for line in log.sink.lines] == ["mine", None]

    own = Log()
    own.stream.context = lambda: {"request_id": "mine", "model": "mlp"}
    own.fail(ValueError("bad"), model="other")  # what a message brings goes before
    assert (own.sink.lines[0]["request_id"], own.sink.lines[0]["model"]) == ("mine", "other")


def test_the_end_says_the_counts_that_are_left() -> None:
    log = Log()
    for i in range(FIRST + 3):
        log.fail(ValueError(str(i)))
    log.stream.close()
    assert log.sink.lines[-1]["repeats"] == 3


def test_what_the_sink_did_not_take_is_counted_once_it_does() -> None:
    log = Log()
    log.sink.is_full = True
    for _ in range(7):
        log.logger.info("in vain")
    log.sink.is_full = False
    log.logger.info("heard")
    log.logger.info("heard too")
    assert log.sink.texts == ["7 messages are lost: stderr did not take them", "heard", "heard too"]


def test_a_message_that_cannot_be_written_is_lost_and_no_more() -> None:
    log = Log()
    log.logger.info("%(a)s", {"a": 1, 5: {(1, 2): "no key of JSON"}})
    log.logger.info("next")
    assert log.sink.texts == ["1 messages are lost: stderr did not take them", "next"]


# -- a whole process ---------------------------------------------------------------------------

SPEAKER = """
import logging, sys, threading, warnings
from batchpool.log import setup

setup.set_up("worker", "worker 0 of mlp", "info", FORMAT)
print("what a model prints")
logging.getLogger("batchpool.worker").info("%(rows)d rows", {"rows": 8, "batch": 17})
logging.getLogger("batchpool.worker").debug("not at this level")
logging.getLogger("uvicorn.error").error("of a\\nlibrary")
warnings.warn("old", FutureWarning)
thread = threading.Thread(target=lambda: 1 / 0, name="aside")
thread.start()
thread.join()

class Loud:
    def __del__(self):
        raise ValueError("in __del__")

Loud()
raise KeyError("the end")
"""


def speak(log_format: str, journal: str = "", **streams: Any) -> subprocess.CompletedProcess[bytes]:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "default"}
    env["JOURNAL_STREAM"] = journal
    command = [sys.executable, "-c", SPEAKER.replace("FORMAT", repr(log_format))]
    return subprocess.run(command, env=env, check=False, timeout=60, **streams)


def test_everything_that_a_process_says_is_in_its_log() -> None:
    done = speak("json", capture_output=True)
    assert done.stdout == b"what a model prints\n"
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert {(line["role"], line["post"]) for line in lines} == {("worker", "worker 0 of mlp")}
    assert [(line["logger"], line["level"], line["message"].split(":")[0]) for line in lines] == [
        ("batchpool.worker", "info", "8 rows"),
        ("uvicorn.error", "error", "of a\nlibrary"),
        ("py.warnings", "warning", "<string>"),
        ("batchpool.worker", "error", "thread aside ended"),
        ("batchpool.worker", "error", lines[4]["message"].split(":")[0]),
        ("batchpool.worker", "critical", "this process ends"),
    ]
    assert "FutureWarning: old" in lines[2]["message"]
    assert "__del__" in lines[4]["message"]
    ends = [line.get("exception", "").rpartition("\n")[2] for line in lines]
    assert ends[3:] == [
        "ZeroDivisionError: division by zero",
        "ValueError: in __del__",
        "KeyError: 'the end'",
    ]
    assert lines[0]["batch"] == 17


def test_in_the_journal_every_line_has_its_priority() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        found = os.fstat(theirs.fileno())
        journal = f"{found.st_dev}:{found.st_ino}"
        speak("auto", journal, stdout=subprocess.DEVNULL, stderr=theirs)
        theirs.close()
        with ours.makefile("rb") as stream:
            lines = stream.read().decode().splitlines()
    assert lines[0] == "<6>worker 0 of mlp INFO 8 rows batch=17"
    assert lines[1:3] == ["<3>worker 0 of mlp ERROR uvicorn.error: of a", "<3>    library"]
    assert lines[-1] == "<3>    KeyError: 'the end'"
    assert all(re.match(r"<[34]>(worker 0 of mlp [A-Z]+ |    )", line) for line in lines[1:])


def test_a_process_whose_stderr_takes_nothing_does_its_work() -> None:
    reads, writes = os.pipe()
    os.close(reads)
    with open("/dev/full", "wb", buffering=0) as full:
        for log_format, stderr in (("human", full.fileno()), ("json", writes)):
            done = speak(log_format, stdout=subprocess.PIPE, stderr=stderr)
            assert done.stdout == b"what a model prints\n"
            assert done.returncode == 1  # of its own exception
    os.close(writes)
