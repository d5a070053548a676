"""Whatever a model does to `logging`, the process's own lines come out, and the model's as it
configured them."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from batchpool.log.own_loggers import ACCESS, NAMES, OwnLogger, set_least

ROOT = Path(__file__).resolve().parents[3]

WORKER = """
import logging, logging.config, sys, warnings
from batchpool.log import setup

own = logging.getLogger("batchpool.worker")
setup.set_up("worker", "worker 0 of mlp", "info", "json")
model = logging.getLogger("model")
early = logging.getLogger("early")

CONFIGURE

own.debug("own debug")
own.info("own %(n)d", {"n": 1})
logging.getLogger("batchpool.client").error("own error", exc_info=ValueError("bad"))
model.info("model info")
model.error("model error")
early.error("early error")
"""

SWEEP = """
for name in list(logging.root.manager.loggerDict):
    logger = logging.getLogger(name)
    logger.handlers, logger.propagate = [], True
    logger.setLevel(logging.CRITICAL)
    logger.addFilter(lambda record: False)
    logger.disabled = True
"""
FACTORY = """
class Record(logging.LogRecord):
    def getMessage(self):
        raise RuntimeError("a bad record")
logging.setLogRecordFactory(Record)
"""
DICT_CONFIG = """
logging.config.dictConfig({
    "version": 1, "disable_existing_loggers": True,
    "formatters": {"plain": {"format": "MODEL %(message)s"}},
    "handlers": {"out": {"class": "logging.StreamHandler", "stream": "ext://sys.stdout",
                         "formatter": "plain"}},
    "root": {"level": "ERROR", "handlers": ["out"]},
    "loggers": {"model": {"level": "INFO"}},
})
"""
ALL = ["model info", "model error", "early error"]
ERRORS = ["model error", "early error"]
# (what a model does, what of its own messages is in our log, what it printed)
CASES = {
    "nothing": ("", ALL, []),
    "dictConfig": (DICT_CONFIG, [], ["MODEL model info", "MODEL model error"]),
    "basicConfig": (
        'logging.basicConfig(force=True, stream=sys.stdout, format="%(message)s")', [],
        ["model info", "model error", "early error"],
    ),
    "disable": ("logging.disable(logging.CRITICAL)", [], []),
    "no root handlers": ("logging.root.handlers.clear(); logging.lastResort = None", [], []),
    "root handler's level": (
        "for h in logging.root.handlers: h.setLevel(logging.ERROR)", ERRORS, [],
    ),
    "root level": ("logging.root.setLevel(logging.ERROR)", ERRORS, []),
    "shutdown": ("logging.shutdown()", ALL, []),
    "streams": ("sys.stderr = sys.stdout = open('/dev/null', 'w')", ALL, []),
    "no streams": ("sys.stderr = sys.stdout = None", ALL, []),
    "raiseExceptions": ("logging.raiseExceptions = True", ALL, []),
    "level names": ("logging.addLevelName(logging.INFO, 'X'); logging.disable(logging.ERROR)",
                    [], []),
    "sweep": (SWEEP, [], []),
    "factory": (FACTORY, None, []),
    "own handler": (
        "model.addHandler(logging.StreamHandler(sys.stdout)); model.propagate = False",
        ["early error"], ["model error"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_own_lines_come_out_and_those_of_the_model_as_it_wants(case: str) -> None:
    configure, logged, printed = CASES[case]
    if case == "own handler":  # its level is the root's
        printed = ["model info", *printed]
    done = subprocess.run(
        [sys.executable, "-c", WORKER.replace("CONFIGURE", configure)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    own = [line for line in lines if line["logger"].startswith("batchpool.")]
    assert [(line["logger"], line["level"], line["message"]) for line in own] == [
        ("batchpool.worker", "info", "own 1"),
        ("batchpool.client", "error", "own error"),
    ]
    assert "ValueError: bad" in own[1]["exception"]
    assert {line["post"] for line in lines} == {"worker 0 of mlp"}
    if logged is not None:
        assert [line["message"] for line in lines if line not in own] == logged
    assert done.stdout.splitlines() == printed


def test_repeats_are_counted_at_the_end_though_logging_was_shut_down() -> None:
    script = WORKER.replace("CONFIGURE", DICT_CONFIG) + "for i in range(9): own.error('again')\n"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    last = json.loads(done.stderr.splitlines()[-1])
    assert (last["repeats"], last["level"]) == (4, "error")


def test_every_logger_of_the_package_is_protected() -> None:
    pattern = re.compile(r'getLogger\(f?"(batchpool[^"]*)"')
    named = {
        name for path in (ROOT / "batchpool").rglob("*.py")
        for name in pattern.findall(path.read_text())
    }  # fmt: skip
    assert named - {"batchpool.{role}"} <= {*NAMES}


# -- in this process -----------------------------------------------------------------------------


class Kept(logging.Handler):
    """Keeps the texts of records."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[Kept]:
    handler = Kept()
    monkeypatch.setattr(OwnLogger, "handler", handler, raising=False)
    monkeypatch.setattr(OwnLogger, "least", logging.WARNING)
    factory = logging.getLogRecordFactory()
    yield handler
    logging.disable(logging.NOTSET)
    logging.setLogRecordFactory(factory)


def test_no_switch_of_logging_concerns_an_own_logger(kept: Kept) -> None:
    def no_record(*_: object, **__: object) -> logging.LogRecord:
        raise RuntimeError("a bad factory")

    logger = OwnLogger("batchpool.worker")
    logger.disabled = True
    logger.setLevel(logging.CRITICAL)
    logger.addFilter(lambda record: False)
    logging.disable(logging.CRITICAL)
    logging.setLogRecordFactory(no_record)
    logger.info("too fine")
    logger.warning("%(n)d rows", {"n": 8})
    logging.setLogRecordFactory(logging.LogRecord)
    assert kept.texts == ["8 rows"]


def test_the_configured_level_holds_and_lines_about_requests_have_their_own(kept: Kept) -> None:
    OwnLogger(ACCESS).info("GET /")
    OwnLogger(ACCESS).debug("too fine")
    OwnLogger("batchpool.frontend").info("too fine")
    level = OwnLogger("batchpool.frontend").getEffectiveLevel()
    set_least(logging.DEBUG)
    OwnLogger("batchpool.frontend").debug("fine")
    assert (kept.texts, level) == (["GET /", "fine"], logging.WARNING)
