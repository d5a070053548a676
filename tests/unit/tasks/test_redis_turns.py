"""Turns of callers in Redis beyond the contract: partitions, owners, and what is kept of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs

from batchpool.tasks.record import Again, ClaimedTask, NewTask
from batchpool.tasks.redis_store import RedisStore
from tests.redis_server import RedisServer, redis_server
from tests.unit.tasks.redis_calls import LIMITS, NOW, claimed, done, new
from tests.unit.tasks.test_turns import MOST_ROWS, Task, most_ahead

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


def kept_of_turns(server: RedisServer) -> list[str]:
    """The keys of partition 0 that say whose turn it is."""
    found = []
    for kind in ("q", "turn", "left", "at", "ends"):
        words = server.say("KEYS", f"bp:{{0}}:{kind}:*").decode().split()
        found += [word.removeprefix("bp:{0}:") for word in words if word.startswith("bp:")]
    return sorted(found)


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


def test_names_do_not_multiply_the_turns_of_an_origin_in_any_partition(box: Open) -> None:
    """Two boxes: one origin sends each task under a new name, another one all under its own."""
    one, other = box(), box()
    many = [
        structs.replace(new(i, i % 16), caller=f"client {i}", origin="10.0.0.1")
        for i in range(960)
    ]  # fmt: skip
    few = [structs.replace(task, origin="10.0.0.2") for task in of("client me", 2000, 320)]
    one.put(many, NOW)
    claimed(one, 160)
    other.put(few, NOW)
    found = claimed(one, 128) + claimed(other, 128)
    assert abs(callers_of(found, few) - 128) <= 16


@given(
    sent=st.lists(
        st.tuples(st.sampled_from("xyz"), st.sampled_from("abc"), st.integers(1, 9)),
        min_size=1,
        max_size=40,
    ),
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=4),
)
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=40
)
def test_a_partition_has_the_turns_of_the_others_kinds_of_stores(
    box: Open, shared_server: RedisServer, sent: list[Task], sizes: list[int]
) -> None:
    shared_server.say("FLUSHALL")
    store = box()
    tasks = {
        task.id: (task.origin, task.caller, task.rows)
        for number, (origin, caller, rows) in enumerate(sent)
        for task in [structs.replace(new(number), origin=origin, caller=caller, rows=rows)]
    }
    store.put([structs.replace(new(n), origin=o, caller=c, rows=r) for n, (o, c, r) in
               enumerate(sent)], NOW)  # fmt: skip
    order: list[Task] = []
    while found := claimed(store, sizes[len(order) % len(sizes)]):
        order += [tasks[task.id] for task in found]
    assert sorted(order) == sorted(sent)
    assert most_ahead(order, 0) <= 2 * MOST_ROWS
    for origin in "xyz":
        assert most_ahead([task for task in order if task[0] == origin], 1) <= 2 * MOST_ROWS
    assert kept_of_turns(shared_server) == []


def test_lines_that_have_ended_are_forgotten(box: Open, shared_server: RedisServer) -> None:
    def named(number: int, origin: str) -> NewTask:
        return structs.replace(new(number), caller=str(number), origin=origin)

    store = box()
    for number in range(20):
        store.put([named(number, str(number))], NOW)
        claimed(store)
    assert kept_of_turns(shared_server) == []
    store.put([named(40 + i, "x") for i in range(10)], NOW)
    store.put([named(60 + i, str(60 + i)) for i in range(10)], NOW)
    assert len(claimed(store, 19)) == 19
    assert kept_of_turns(shared_server) == [
        "at:m", "ends:m:x", "q:m", "q:m:x", "turn:m"
    ]  # fmt: skip
    claimed(store)
    assert kept_of_turns(shared_server) == []


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
    store.put([structs.replace(new(0), origin="10.0.0.1")], NOW)
    for first in range(1, 6000, 500):
        tasks = [
            structs.replace(new(i), caller=str(i), origin="10.0.0.1" if i % 2 else f"10.0.0.{i}")
            for i in range(first, first + 500)
        ]
        store.put(tasks, NOW)
        store.cancel([task.id for task in tasks], NOW)
    kept = int(shared_server.say("ZCARD", "bp:{0}:ends:m:10.0.0.1")[1:])
    assert 0 < kept <= 1024 + 2 * 501
    assert kept_of_turns(shared_server) == ["ends:m:10.0.0.1", "q:m", "q:m:10.0.0.1"]
    assert len(claimed(store)) == 1


def test_origins_with_one_task_each_leave_a_bounded_number_of_turns(
    box: Open, shared_server: RedisServer
) -> None:
    """Also where one that waits has its turn far behind all of them."""
    store = box()
    store.put([structs.replace(new(i), origin="waits", rows=10**9) for i in range(2)], NOW)
    claimed(store, 1)
    for first in range(10, 2510, 100):
        tasks = [structs.replace(new(i), origin=str(i)) for i in range(first, first + 100)]
        store.put(tasks, NOW)
        assert len(claimed(store, 100)) == 100
    assert int(shared_server.say("ZCARD", "bp:{0}:left:m")[1:]) <= 1024 + 100
    assert int(shared_server.say("ZCARD", "bp:{0}:q:m")[1:]) == 1
