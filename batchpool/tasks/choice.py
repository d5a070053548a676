"""The store of a pool's tasks, as its configuration names it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from batchpool.batches.forward_clock import ForwardClock
from batchpool.tasks.settings import TaskSettings
from batchpool.tasks.sqlite import SqliteStore
from batchpool.tasks.store import StoreAway, TaskStore

# The process before this one may still be on its way out, with the lock of the store.
_LOCK_TRIES, _LOCK_TRY_S = 50, 0.1


def now_ms() -> int:
    """Unix time in milliseconds."""
    return time.time_ns() // 1_000_000


def open_store(folder: Path, settings: TaskSettings) -> tuple[TaskStore, Callable[[], int]]:
    """The store of tasks, and the clock (Unix time in ms) that all who share it have.

    folder: of a store on the disk. Raises StoreAway if it cannot be had. A server that is away is
    no reason: it may come back.
    """
    if settings.store:
        # Imported here: only pools with such a store need the package.
        from batchpool.tasks.redis_address import store_address
        from batchpool.tasks.redis_store import RedisStore

        address = store_address(settings.store, settings.password_file, os.environ)
        store = RedisStore(address, settings.limits, now_ms, settings.lease_s)
        return store, store.clock_ms
    return _open_sqlite(folder, settings), ForwardClock()


def _open_sqlite(folder: Path, settings: TaskSettings) -> SqliteStore:
    for tries_left in range(_LOCK_TRIES, -1, -1):
        try:
            return SqliteStore(folder, settings.limits)
        except StoreAway as exc:
            if not tries_left or not isinstance(exc.__cause__ or exc.__context__, BlockingIOError):
                raise
        time.sleep(_LOCK_TRY_S)
    raise AssertionError("the last try returns or raises")
