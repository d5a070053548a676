"""Stores of earlier versions: their tasks go on, with turns by origin."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from batchpool.tasks.record import PutOutcome
from batchpool.tasks.redis_store import RedisStore
from batchpool.tasks.sqlite import SqliteStore
from batchpool.tasks.store import StoreAway, TaskStore
from tests.redis_server import RedisServer, redis_server
from tests.unit.tasks.earlier import unpack
from tests.unit.tasks.stores import LIMITS, NOW, claimed, done, new, state

QUEUED = [new(i).id for i in range(4, 22)]  # that may run
NAMED = set(QUEUED[:12])  # of 10.0.0.1, under six names
RETRIED, LOST = new(2).id, new(3).id


@pytest.fixture
def database(tmp_path: Path) -> Path:
    (tmp_path / "tasks/bodies").mkdir(parents=True, mode=0o700)
    (tmp_path / "tasks").chmod(0o700)
    unpack("sqlite_3.db", tmp_path / "tasks/tasks.db")
    return tmp_path / "tasks"


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with redis_server() as server:
        server.kill()
        unpack("redis_3.rdb", server.folder / "dump.rdb")
        server.start()
        yield server


def assert_goes_on(store: TaskStore, heir: TaskStore | None = None) -> None:
    """Every task is claimed once, in turns by origin."""
    assert store.models() == {"m"}
    assert store.next_due_ms(["m"]) == [0]
    first = [task.id for task in claimed(store, 4)]
    assert len(NAMED.intersection(first)) == 2
    store.put([new(50, caller="client g", origin="10.0.0.1")], NOW)
    rest = claimed(store, 9)
    named = [t.id for t in rest if t.id in NAMED or t.id == new(50).id]
    assert new(50).id in named
    assert len(named) in (4, 5)
    store = heir or store
    assert store.reclaim(NOW).tasks >= 1
    order = [task.id for task in claimed(store, now_ms=NOW + 500)]
    ids = Counter([*first, *(task.id for task in rest), *order])
    assert set(ids) == {*QUEUED, new(50).id, RETRIED, LOST}
    assert {ids[identifier] for identifier in (*QUEUED, new(50).id)} <= {1, 2}
    (letter,) = store.letters("", "", 0, 9, (), whole=True)
    assert (letter.id, letter.caller, letter.input) == (new(1).id, "client a", b"input 1")
    (replayed,) = store.replay([letter.letter], NOW, NOW + 10_000)
    assert [task.id for task in claimed(store)] == [replayed]


def test_a_database_of_version_3_goes_on(database: Path) -> None:
    store = SqliteStore(database, LIMITS)
    assert store.counts().tasks == {
        "m": {"queued": 19, "running": 1, "done": 1, "failed": 1, "cancelled": 1}
    }
    (result,) = store.collect([new(0).id], NOW)
    assert result is not None
    assert (result.principal, result.answer and result.answer.body) == ("ops", b"{}")
    (put,) = store.put([new(60, principal="ops", key=b"k" * 32, fingerprint=b"f" * 16)], NOW)
    assert (put.outcome, put.task and put.task.id) == (PutOutcome.KNOWN, new(0).id)
    assert_goes_on(store)
    assert store._account.shares.of("10.0.0.1") > store._account.shares.of("2001:db8::/64") > 0
    store.close()
    with closing(sqlite3.connect(database / "tasks.db")) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (4,)
        (made,) = db.execute("SELECT sql FROM sqlite_master WHERE name = 'turns'").fetchone()
    SqliteStore(database.with_name("new"), LIMITS).close()
    with closing(sqlite3.connect(database.with_name("new") / "tasks.db")) as db:
        query = "SELECT sql FROM sqlite_master WHERE name = 'turns'"
        assert db.execute(query).fetchone() == (made,), "as in one that is made now"


def test_a_database_is_upgraded_as_a_whole_or_not_at_all(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("batchpool.tasks.schema._STEPS", {3: "DROP INDEX turns; SELECT no_column;"})
        with pytest.raises(StoreAway, match="no such column"):
            SqliteStore(database, LIMITS)
    store = SqliteStore(database, LIMITS)
    assert_goes_on(store)
    store.close()


_TURNS_OF_CALLERS = (
    "DROP INDEX turns; PRAGMA user_version = 3;"
    " CREATE INDEX turns ON tasks (model, turn) WHERE state = 0 AND turn IS NOT NULL;"
)
_WITHOUT_ORIGINS = _TURNS_OF_CALLERS + (
    "DROP INDEX holders; DROP TABLE reads; ALTER TABLE letters DROP COLUMN origin;"
    " ALTER TABLE tasks DROP COLUMN origin; ALTER TABLE tasks DROP COLUMN size;"
    " PRAGMA user_version = 2;"
)
_WITHOUT_TURNS = (
    "DROP INDEX turns; DROP INDEX waits; ALTER TABLE tasks DROP COLUMN turn;"
    " CREATE INDEX due ON tasks (model, due_ms) WHERE state = 0; PRAGMA user_version = 1;"
)


@pytest.mark.parametrize(
    "changes", [_TURNS_OF_CALLERS, _WITHOUT_ORIGINS, _WITHOUT_ORIGINS + _WITHOUT_TURNS]
)
def test_a_database_of_an_earlier_version_goes_on(tmp_path: Path, changes: str) -> None:
    store = SqliteStore(tmp_path / "tasks", LIMITS)
    store.put([new(i) for i in range(3)], NOW)
    size = store._account.shares.of("me")
    store.close()
    with sqlite3.connect(tmp_path / "tasks/tasks.db") as db:
        db.executescript(changes)
    db.close()
    store = SqliteStore(tmp_path / "tasks", LIMITS)
    assert store._account.shares.of("me") == size > 0
    store.close()
    store = SqliteStore(tmp_path / "tasks", LIMITS)
    assert store.next_due_ms(["m"]) == [NOW if "INDEX due" in changes else 0]
    store.put([new(3)], NOW)
    assert len(claimed(store)) == 4
    store.close()
    SqliteStore(tmp_path / "tasks", LIMITS).close()


def test_a_store_in_redis_of_version_3_goes_on(server: RedisServer) -> None:
    store = RedisStore(server.address, LIMITS, lambda: NOW, lease_s=600.0)
    heir = RedisStore(server.address, LIMITS, lambda: NOW, lease_s=0.0)
    assert_goes_on(store, heir)
    assert server.say("HGET", "bp:cfg", "version") == b"$1\r\n4\r\n"
    assert server.say("EXISTS", "bp:{0}:w:m") == b":0\r\n"


def test_boxes_of_version_3_that_still_run_share_the_store(server: RedisServer) -> None:
    """Tasks that they queue are taken, or taken back, by any box."""
    store = RedisStore(server.address, LIMITS, lambda: NOW, lease_s=600.0)
    everything = claimed(store)
    assert all(store.finish([done(task) for task in everything], NOW))
    store.put([new(70 + i) for i in range(3)], NOW)
    for i in range(3):
        identifier = new(70 + i).id
        server.say("ZREM", "bp:{0}:q:m:me", identifier)
        server.say("ZADD", "bp:{0}:w:m", str(i), identifier)
        server.say("HSET", f"bp:{{0}}:t:{identifier}", "which", "w", "turn", str(i))
    assert store.next_due_ms(["m"]) == [0]
    assert store.cancel([new(70).id], NOW)[0] is not None
    assert server.say("ZCARD", "bp:{0}:w:m") == b":2\r\n"
    assert [task.id for task in claimed(store)] == [new(71).id, new(72).id]
    assert state(store, new(70).id) == "cancelled"
