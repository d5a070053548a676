"""Dead letters in Redis beyond the contract: which ones make room for new ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from msgspec import structs

from batchpool.tasks import redis_claims
from batchpool.tasks.record import StoreLimits
from batchpool.tasks.redis_store import RedisStore
from tests.redis_server import RedisServer, redis_server
from tests.unit.tasks.redis_calls import LIMITS, NOW, claimed, letter, new


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


def opened(server: RedisServer, limits: StoreLimits = LIMITS) -> RedisStore:
    """An empty store."""
    server.say("FLUSHALL")
    return RedisStore(server.address, limits, lambda: NOW, 600.0)


def test_letters_of_who_has_most_make_room_for_those_of_others(server: RedisServer) -> None:
    store = opened(server, replace(LIMITS, bytes=64 * 8000))
    tasks = [structs.replace(new(i), origin="many" if i else "few") for i in range(9)]
    store.put(tasks, NOW)
    store.finish([letter(task) for task in claimed(store)], NOW)
    kept = [form.id for form in store.letters("", "", 0, 10, (), whole=False)]
    assert kept == [new(i).id for i in (8, 7, 0)]


def test_the_oldest_letters_go_where_there_are_too_many(server: RedisServer) -> None:
    store = opened(server, replace(LIMITS, bytes=64 * 1500))
    store.put([new(i, input=bytes(500)) for i in range(6)], NOW)
    store.finish([letter(task) for task in claimed(store)], NOW)
    kept = store.letters("", "", 0, 10, (), whole=True)
    assert [form.id for form in kept] == [new(5).id]
    assert store.counts().letters == 1


def test_letters_whose_records_have_gone_make_room_for_those_of_another_origin(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the server evicts: the origin with most letters has none that can be dropped."""
    monkeypatch.setattr(redis_claims, "LETTERS_MOST", 48)  # three in each partition
    store = opened(server)
    store.put([new(number) for number in range(3)], NOW)
    store.finish([letter(task) for task in claimed(store)], NOW)
    for kept in store.letters("", "", 0, 9, (), whole=False):
        server.say("DEL", f"bp:{{0}}:l:{kept.letter}")
    store.put([structs.replace(new(number), origin="other") for number in (3, 4)], NOW)
    assert all(store.finish([letter(task) for task in claimed(store)], NOW))
    assert {kept.id for kept in store.letters("", "", 0, 9, (), whole=False)} == {
        new(3).id, new(4).id,
    }  # fmt: skip
    assert server.say("ZCARD", "bp:{0}:dead_of:me") == b":1\r\n"
