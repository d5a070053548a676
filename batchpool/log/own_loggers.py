"""batchpool's own loggers in a process of the pool: out of reach of a model's logging.

A user's code shares the module `logging` with the process that runs it, and may disable all loggers
that exist, replace the root's handlers, forbid levels, or sweep over every logger there is. None of
that reaches these: they have one handler and one level, both held here, and make their own records.
Only processes of the pool protect them; in a user's own program they are ordinary loggers.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from types import TracebackType
from typing import ClassVar

ACCESS = "batchpool.access"
NAMES = (
    "batchpool.supervisor", "batchpool.clients", "batchpool.frontend", ACCESS, "batchpool.worker",
    "batchpool.batcher", "batchpool.client", "batchpool.credentials", "batchpool.tasks",
    "batchpool.consume",
)  # fmt: skip
"""Every logger of the package."""

_ExcInfo = (
    tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None] | None
)


class OwnLogger(logging.Logger):
    """A logger that is told what to do by this file alone.

    handler: takes every record of a level that is logged. least: that level; lines about single
    requests have a configuration of their own, and are logged from INFO on.
    """

    handler: ClassVar[logging.Handler]
    least: ClassVar[int] = logging.INFO

    @property
    def disabled(self) -> bool:
        """Never; a configuration of logging sets it on loggers that it does not name."""
        return False

    @disabled.setter
    def disabled(self, value: bool) -> None:
        pass

    def getEffectiveLevel(self) -> int:
        """The least severe level that is logged."""
        return logging.INFO if self.name == ACCESS else self.least

    def isEnabledFor(self, level: int) -> bool:
        """True if messages of this level are logged, whatever levels are disabled."""
        return level >= self.getEffectiveLevel()

    def makeRecord(
        self,
        name: str,
        level: int,
        fn: str,
        lno: int,
        msg: object,
        args: tuple[object, ...] | Mapping[str, object],
        exc_info: _ExcInfo,
        func: str | None = None,
        extra: Mapping[str, object] | None = None,
        sinfo: str | None = None,
    ) -> logging.LogRecord:
        """A plain record; that of a user's factory might be anything."""
        return logging.LogRecord(name, level, fn, lno, msg, args, exc_info, func, sinfo)

    def handle(self, record: logging.LogRecord) -> None:
        """Give a record to the process's log, past all filters and other handlers."""
        self.handler.handle(record)


def protect(handler: logging.Handler, level: int) -> None:
    """Let all own loggers write to this handler from now on, messages of `level` and above."""
    OwnLogger.handler, OwnLogger.least = handler, level
    for name in NAMES:
        logger = logging.getLogger(name)
        if not isinstance(logger, OwnLogger):
            logger.__dict__.pop("disabled", None)
            logger.__class__ = OwnLogger


def set_least(level: int) -> None:
    """Log messages of `level` and above from now on."""
    OwnLogger.least = level
