"""A fixture that every test of a store uses: each kind of store, opened again and again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from batchpool.tasks.record import StoreLimits
from batchpool.tasks.redis_store import RedisStore
from batchpool.tasks.sqlite import SqliteStore
from batchpool.tasks.store import TaskStore
from tests.redis_server import RedisServer, redis_server
from tests.unit.tasks.memory_store import MemoryStore, Shelf
from tests.unit.tasks.stores import LIMITS, NOW, Open


@pytest.fixture(scope="module")
def any_server() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


@pytest.fixture(params=["memory", "sqlite", "redis"])
def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """Opens the store, again and again: each time as the next owner, after the last one died."""
    shelf = Shelf()
    stores: list[SqliteStore] = []
    if request.param == "redis":
        server: RedisServer = request.getfixturevalue("any_server")
        server.say("FLUSHALL")

    def open_store(limits: StoreLimits = LIMITS) -> TaskStore:
        if request.param == "memory":
            return MemoryStore(shelf, limits)
        if request.param == "redis":
            # Without a lease all owners but the last have vanished.
            return RedisStore(server.address, limits, lambda: NOW, lease_s=0.0)
        if stores:
            stores[-1].close()
        stores.append(SqliteStore(tmp_path / "tasks", limits))
        return stores[-1]

    return open_store
