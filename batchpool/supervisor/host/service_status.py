"""What the service manager is told of the pool, and when.

    while models load      STATUS, and every second EXTEND_TIMEOUT_USEC: another 30 s from now,
                           until load_timeout_s is over and whoever still loads is killed
    once ready             READY=1, one time
    while it reloads       RELOADING=1 and MONOTONIC_USEC, then STATUS and more time as above; at
                           the end, done or undone, READY=1
    from then on           STATUS when it changes; WATCHDOG=1 every half of the watchdog's time, but
                           only if the batcher and the front ends have moved since the last one
    at the end             STOPPING=1, with time for drain_s; then STATUS

A batcher or front end that stands still is replaced after stall_timeout_s, and the watchdog does
not hear of it if its time is longer than that takes.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Sequence

from batchpool.core.config.schema import Config, ServerConfig
from batchpool.supervisor.host.sd_notify import Notifier

_LOG = logging.getLogger("batchpool.supervisor")
_S = 1_000_000_000
_EACH_NS = _S  # between two looks at the status, and two extensions
_RETRY_NS = _S // 4  # to look again for whoever has not moved
_EXTENSION_S = 30.0
_LEAST_START_S = 60.0  # as the vigil's: load_timeout_s may be shorter than a Python's start
_END_S = 15.0  # beyond drain_s, for ending processes
NEVER_NS = 1 << 62


def tell_of_survey(notifier: Notifier, config: Config) -> None:
    """Before the models are asked what they are; each may take load_timeout_s for it."""
    names = ", ".join(model.import_name for model in config.models)
    most_s = len(config.models) * config.server.load_timeout_s + _EXTENSION_S
    notifier.tell(STATUS=f"importing {names}", EXTEND_TIMEOUT_USEC=int(most_s * 1e6))


class _Phase(enum.Enum):
    LOADING = enum.auto()
    SERVING = enum.auto()
    STOPPING = enum.auto()


class ServiceStatus:
    """Speaks for one pool.

    status: one line on its state. standing: who among the batcher and the front ends has not
    moved since a time (CLOCK_MONOTONIC ns). No clock is read here.
    """

    def __init__(
        self,
        notifier: Notifier,
        server: ServerConfig,
        status: Callable[[], str],
        standing: Callable[[int], Sequence[str]],
        now_ns: int,
    ) -> None:
        self._notifier = notifier
        self._server = server
        self._status = status
        self._standing = standing
        self._phase = _Phase.LOADING
        self._said = ""
        self._due_ns = now_ns
        self._load_until_ns = now_ns + int(max(server.load_timeout_s, _LEAST_START_S) * _S)
        self._pinged_ns = now_ns
        self._held_back = False
        self._reloads = False

    def tick(self, now_ns: int) -> int:
        """Say what is due; returns when it is next due (CLOCK_MONOTONIC ns)."""
        if not self._notifier:
            return NEVER_NS
        self._notifier.flush()
        if self._due_ns <= now_ns:
            self._due_ns = now_ns + _EACH_NS
            self._say_status()
            loading = self._phase is _Phase.LOADING and now_ns < self._load_until_ns
            if loading or self._reloads:
                self._notifier.tell(EXTEND_TIMEOUT_USEC=int(_EXTENSION_S * 1e6))
        if self._phase is not _Phase.SERVING or not self._notifier.watchdog_ns:
            return self._due_ns
        return min(self._due_ns, self._ping(now_ns))

    def _ping(self, now_ns: int) -> int:
        half_ns = self._notifier.watchdog_ns // 2
        if now_ns < self._pinged_ns + half_ns:
            return self._pinged_ns + half_ns
        standing = self._standing(self._pinged_ns)
        if not standing:
            self._notifier.tell(WATCHDOG=1)
            self._pinged_ns = now_ns
            self._held_back = False
            return now_ns + half_ns
        # One look too early is no news.
        if not self._held_back and now_ns >= self._pinged_ns + half_ns + half_ns // 2:
            self._held_back = True
            _LOG.error("the watchdog is not told to wait: %s stands still", ", ".join(standing))
        return now_ns + _RETRY_NS

    def _say_status(self, **more: int) -> None:
        status = self._status()
        if status != self._said or more:
            self._said = status
            self._notifier.tell(**more, STATUS=status)

    def ready(self, now_ns: int) -> None:
        """The pool is ready, for the first time."""
        self._phase = _Phase.SERVING
        self._pinged_ns = now_ns
        self._say_status(READY=1)
        self._warn_of_a_short_watchdog()

    def _warn_of_a_short_watchdog(self) -> None:
        watchdog_s, stall_s = self._notifier.watchdog_ns / _S, self._server.stall_timeout_s
        if 0 < watchdog_s <= stall_s:
            _LOG.warning(
                "WatchdogSec = %g s is not longer than stall_timeout_s = %g: the service would be"
                " ended where the pool replaces one process",
                watchdog_s, stall_s,
            )  # fmt: skip

    def reloading(self, now_ns: int) -> None:
        """The pool, which serves on, has begun to reload."""
        self._reloads = True
        self._say_status(RELOADING=1, MONOTONIC_USEC=now_ns // 1000)

    def look(self) -> None:
        """The status may be another: not to be missed although it is looked at each second."""
        self._say_status()

    def reloaded(self) -> None:
        """It has ended to reload, one way or the other."""
        if self._reloads:
            self._reloads = False
            self._say_status(READY=1)

    def set_server(self, server: ServerConfig) -> None:
        """Other times from now on: a reload has changed them."""
        self._server = server

    def stopping(self) -> None:
        """The pool stops, and has begun to drain."""
        self._phase = _Phase.STOPPING
        self._reloads = False
        more_s = self._server.drain_s + _END_S
        self._say_status(STOPPING=1, EXTEND_TIMEOUT_USEC=int(more_s * 1e6))
