"""The store that a configuration names."""

from __future__ import annotations

from pathlib import Path

import pytest

from batchpool.batches.forward_clock import ForwardClock
from batchpool.tasks import choice
from batchpool.tasks.choice import open_store
from batchpool.tasks.redis_address import PASSWORD_VARIABLE
from batchpool.tasks.redis_store import RedisStore
from batchpool.tasks.settings import TaskSettings
from batchpool.tasks.sqlite import SqliteStore
from batchpool.tasks.store import StoreAway
from tests.redis_server import redis_server
from tests.unit.tasks.redis_calls import LIMITS, NOW, new


def settings(store: str = "", password_file: str = "", lease_s: float = 10.0) -> TaskSettings:
    return TaskSettings(LIMITS, 1000, 10_000, 3, 64, "", store, password_file, lease_s)


def test_without_an_address_it_is_the_folder_and_the_clock_of_the_machine(tmp_path: Path) -> None:
    store, clock_ms = open_store(tmp_path / "tasks", settings())
    assert isinstance(store, SqliteStore)
    assert (type(clock_ms), store.lease_s) == (ForwardClock, 0)
    store.close()


def test_an_address_is_a_server_with_its_clock_and_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "now_ms", lambda: NOW)
    with redis_server("--requirepass", "secret-word", password="secret-word") as server:
        monkeypatch.setenv(PASSWORD_VARIABLE, "secret-word")
        store, clock_ms = open_store(tmp_path, settings(server.address.url, lease_s=3.0))
        assert isinstance(store, RedisStore)
        assert store.lease_s == 3.0
        assert clock_ms() == NOW, "until the server has told its own"
        store.sweep(NOW)
        assert clock_ms() > NOW, "the server's, since the clocks of machines differ"
        assert store.put([new(1)], NOW)[0].task is not None
        store.close()
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_is_away_is_no_reason_not_to_start(tmp_path: Path) -> None:
    store, _ = open_store(tmp_path, settings("redis://127.0.0.1:1"))
    with pytest.raises(StoreAway, match=r"redis://127\.0\.0\.1:1"):
        store.counts()


def test_a_password_that_cannot_be_read_is_one(tmp_path: Path) -> None:
    with pytest.raises(StoreAway, match="tasks_store_password_file /no/password"):
        open_store(tmp_path, settings("redis://127.0.0.1:1", "/no/password"))


def test_a_folder_that_the_process_before_leaves_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "_LOCK_TRIES", 2)
    monkeypatch.setattr(choice, "_LOCK_TRY_S", 0.0)
    before, _ = open_store(tmp_path, settings())
    with pytest.raises(StoreAway):
        open_store(tmp_path, settings())
    tries: list[float] = []

    def leave(seconds: float) -> None:
        tries.append(seconds)
        before.close()

    monkeypatch.setattr(choice.time, "sleep", leave)
    store, _ = open_store(tmp_path, settings())
    assert len(tries) == 1
    store.close()


def test_a_folder_that_cannot_be_used_is_told_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(choice.time, "sleep", lambda seconds: pytest.fail("it waits for nothing"))
    with pytest.raises(StoreAway):
        open_store(tmp_path / "file" / "tasks", settings())
