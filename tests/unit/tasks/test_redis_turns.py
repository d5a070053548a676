"""Turns of callers in Redis beyond the contract: partitions, owners, and what is kept of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from msgspec import structs

from batchpool.tasks.record import Again, ClaimedTask, NewTask
from batchpool.tasks.redis_store import RedisStore
from tests.redis_server import RedisServer, redis_server
from tests.unit.tasks.redis_calls import LIMITS, NOW, claimed, done, new

Open = Callable[..., RedisStore]


@pytest.fixture(scope="module")
def shared_server() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


@pytest.fixture
def box(shared_server: RedisServer) -> Open:
    shared_server.say("FLUSHALL")
    return lambda lease_s=600.0: RedisStore(shared_server.address, LIMITS, lambda: NOW, lease_s)


def of(caller: str, first: int, tasks: int) -> list[NewTask]:
    return [structs.replace(new(i, i % 16), caller=caller) for i in range(first, first + tasks)]


def callers_of(tasks: list[ClaimedTask], few: list[NewTask]) -> int:
    """The number of tasks of the caller with few."""
    return len({task.id for task in tasks} & {task.id for task in few})


def test_a_caller_with_many_tasks_delays_nobody_else_in_any_partition(box: Open) -> None:
    one, other = box(), box()
    few = of("few", 2000, 32)
    one.put(of("many", 0, 960), NOW)
    claimed(one, 160)
    other.put(few, NOW)
    assert callers_of(claimed(one, 64) + claimed(other, 64), few) == 32


def test_lines_that_have_ended_are_forgotten(box: Open, shared_server: RedisServer) -> None:
    store = box()
    for caller in range(20):
        store.put([structs.replace(new(caller), caller=str(caller))], NOW)
        claimed(store)
    store.put([structs.replace(new(40 + i), caller=str(40 + i)) for i in range(10)], NOW)
    claimed(store, 9)
    assert shared_server.say("ZCARD", "bp:{0}:lines:m") == b":10\r\n"
    claimed(store)
    assert shared_server.say("EXISTS", "bp:{0}:lines:m", "bp:{0}:w:m") == b":0\r\n"


def test_what_a_dead_owner_had_claimed_comes_first_and_what_failed_comes_last(box: Open) -> None:
    store = box()
    store.put([new(i) for i in range(6)], NOW)
    failed, *lost = claimed(store, 3)
    store.retry([Again(failed.id, failed.claim, NOW, True)], NOW)
    heir = box(lease_s=0.0)
    assert heir.reclaim(NOW).tasks == 2
    order = [task.id for task in claimed(heir)]
    rest = [new(i).id for i in range(3, 6)]
    assert order == [*(task.id for task in lost), *rest, failed.id]


def test_the_lost_come_first_also_after_the_queue_was_empty(box: Open) -> None:
    store = box()
    store.put([new(i) for i in range(9)], NOW)
    store.finish([done(task) for task in claimed(store, 8)], NOW)
    (lost,) = claimed(store)
    heir = box(lease_s=0.0)
    heir.put([new(20 + i) for i in range(3)], NOW)
    heir.reclaim(NOW)
    assert claimed(heir)[0].id == lost.id


def test_callers_who_take_their_tasks_back_leave_a_bounded_number_of_lines(
    box: Open, shared_server: RedisServer
) -> None:
    """Also where nothing is claimed, as while a model is away."""
    store = box()
    store.put([new(0)], NOW)
    for first in range(1, 3000, 500):
        tasks = [structs.replace(new(i), caller=str(i)) for i in range(first, first + 500)]
        store.put(tasks, NOW)
        store.cancel([task.id for task in tasks], NOW)
    kept = int(shared_server.say("ZCARD", "bp:{0}:lines:m")[1:])
    assert 0 < kept <= 1024 + 2 * 501
    assert len(claimed(store)) == 1
