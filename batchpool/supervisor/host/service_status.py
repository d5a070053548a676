"""The messages to the service manager about the pool, and their times.

    while models load      STATUS, and every second EXTEND_TIMEOUT_USEC: another 30 s from now,
                           until load_timeout_s is over and workers that still load are killed
    once ready             READY=1, one time
    during a reload        RELOADING=1 and MONOTONIC_USEC, then STATUS and more time as above; at
                           the end, done or undone, READY=1
    from then on           STATUS when it changes; WATCHDOG=1 every half of the watchdog's time, but
                           only if the batcher and the front ends had heartbeats since the last one
    at the end             STOPPING=1, with time for drain_s and unload_timeout_s; then STATUS

A batcher or front end without heartbeats is replaced after stall_timeout_s. If the watchdog's time
is longer than that, the service manager does not notice.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Sequence

from batchpool.core.config.schema import Config
from batchpool.core.config.server_table import ServerConfig
from batchpool.supervisor.host.sd_notify import Notifier

_LOG = logging.getLogger("batchpool.supervisor")
_S = 1_000_000_000
_EACH_NS = _S  # between two checks of the status, and two extensions
_RETRY_NS = _S // 4  # between two checks while heartbeats are missing
_EXTENSION_S = 30.0
_START_S_LEAST = 60.0  # as in the watchdog: load_timeout_s may be shorter than a Python's start
_END_S = 15.0  # after drain_s and unload_timeout_s, for processes that were killed
NEVER_NS = 1 << 62


def notify_discovery(notifier: Notifier, config: Config) -> None:
    """Announce that the models are probed, each of which may take load_timeout_s."""
    names = ", ".join(model.import_name for model in config.models)
    most_s = len(config.models) * config.server.load_timeout_s + _EXTENSION_S
    notifier.notify(STATUS=f"importing {names}", EXTEND_TIMEOUT_USEC=int(most_s * 1e6))


class _Phase(enum.Enum):
    LOADING = enum.auto()
    SERVING = enum.auto()
    STOPPING = enum.auto()


class ServiceStatus:
    """Sends the messages about one pool.

    status: returns its state in one line. without_heartbeat: returns the names of the batcher and
    front ends without a heartbeat since a time (CLOCK_MONOTONIC ns). No clock is read here.
    """

    def __init__(
        self,
        notifier: Notifier,
        server: ServerConfig,
        status: Callable[[], str],
        without_heartbeat: Callable[[int], Sequence[str]],
        now_ns: int,
    ) -> None:
        self._notifier = notifier
        self._server = server
        self._status = status
        self._without_heartbeat = without_heartbeat
        self._phase = _Phase.LOADING
        self._sent = ""
        self._due_ns = now_ns
        self._load_until_ns = now_ns + int(max(server.load_timeout_s, _START_S_LEAST) * _S)
        self._pinged_ns = now_ns
        self._withheld = False
        self._is_reloading = False

    def tick(self, now_ns: int) -> int:
        """Send what is due; returns the time of the next call (CLOCK_MONOTONIC ns)."""
        if not self._notifier:
            return NEVER_NS
        self._notifier.flush()
        if self._due_ns <= now_ns:
            self._due_ns = now_ns + _EACH_NS
            self._send_status()
            loading = self._phase is _Phase.LOADING and now_ns < self._load_until_ns
            if loading or self._is_reloading:
                self._notifier.notify(EXTEND_TIMEOUT_USEC=int(_EXTENSION_S * 1e6))
        if self._phase is not _Phase.SERVING or not self._notifier.watchdog_ns:
            return self._due_ns
        return min(self._due_ns, self._ping(now_ns))

    def _ping(self, now_ns: int) -> int:
        half_ns = self._notifier.watchdog_ns // 2
        if now_ns < self._pinged_ns + half_ns:
            return self._pinged_ns + half_ns
        silent = self._without_heartbeat(self._pinged_ns)
        if not silent:
            self._notifier.notify(WATCHDOG=1)
            self._pinged_ns = now_ns
            self._withheld = False
            return now_ns + half_ns
        # Logged only once the time is nearly over: a heartbeat may just be late.
        if not self._withheld and now_ns >= self._pinged_ns + half_ns + half_ns // 2:
            self._withheld = True
            _LOG.error("the watchdog is not told to wait: %s stands still", ", ".join(silent))
        return now_ns + _RETRY_NS

    def _send_status(self, **more: int) -> None:
        status = self._status()
        if status != self._sent or more:
            self._sent = status
            self._notifier.notify(**more, STATUS=status)

    def ready(self, now_ns: int) -> None:
        """Announce that the pool is ready, for the first time."""
        self._phase = _Phase.SERVING
        self._pinged_ns = now_ns
        self._send_status(READY=1)
        self._warn_if_watchdog_is_short()

    def _warn_if_watchdog_is_short(self) -> None:
        watchdog_s, stall_s = self._notifier.watchdog_ns / _S, self._server.stall_timeout_s
        if 0 < watchdog_s <= stall_s:
            _LOG.warning(
                "WatchdogSec = %g s is not longer than stall_timeout_s = %g: the service would be"
                " ended where the pool replaces one process",
                watchdog_s, stall_s,
            )  # fmt: skip

    def reloading(self, now_ns: int) -> None:
        """Announce a reload; the pool serves on."""
        self._is_reloading = True
        self._send_status(RELOADING=1, MONOTONIC_USEC=now_ns // 1000)

    def refresh(self) -> None:
        """Send the status now if it changed, as a change may last less than a second."""
        self._send_status()

    def reloaded(self) -> None:
        """Announce the end of a reload, done or undone."""
        if self._is_reloading:
            self._is_reloading = False
            self._send_status(READY=1)

    def set_server(self, server: ServerConfig) -> None:
        """Use the settings of another configuration from now on."""
        self._server = server

    def stopping(self) -> None:
        """Announce that the pool stops and drains."""
        self._phase = _Phase.STOPPING
        self._is_reloading = False
        more_s = self._server.drain_s + self._server.unload_timeout_s + _END_S
        self._send_status(STOPPING=1, EXTEND_TIMEOUT_USEC=int(more_s * 1e6))
