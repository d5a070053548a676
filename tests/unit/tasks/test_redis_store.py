"""The store in Redis beyond the contract: several owners, a server that fails, its keys."""

from __future__ import annotations

import logging
import re
import signal
from collections.abc import Callable, Iterator

import pytest
from msgspec import structs

from batchpool.tasks.record import Again, PutOutcome, StoreLimits, Want, partition_of
from batchpool.tasks.redis_address import StoreAddress
from batchpool.tasks.redis_cells import Cells
from batchpool.tasks.redis_link import Link
from batchpool.tasks.redis_store import RedisStore
from batchpool.tasks.store import StoreAway, StoreFull
from tests.ports import free_port
from tests.redis_server import RedisServer, redis_server
from tests.unit.tasks.redis_calls import LIMITS, NOW, OK, claimed, done, letter, new, state

LONG_LEASE_S = 600.0
Open = Callable[..., RedisStore]


@pytest.fixture(scope="module")
def shared_server() -> Iterator[RedisServer]:
    with redis_server("--appendonly", "yes", "--appendfsync", "always") as server:
        yield server


@pytest.fixture
def server(shared_server: RedisServer) -> RedisServer:
    shared_server.say("FLUSHALL")
    return shared_server


@pytest.fixture
def box(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> Open:
    """Opens the store as another owner. A failure is followed by no pause."""
    monkeypatch.setattr("batchpool.tasks.redis_link._PAUSE_S", 0.0)

    def open_store(lease_s: float = LONG_LEASE_S, limits: StoreLimits = LIMITS) -> RedisStore:
        return RedisStore(server.address, limits, lambda: NOW, lease_s)

    return open_store


def test_two_owners_share_all_tasks_and_each_runs_once(box: Open) -> None:
    one, other = box(), box()
    tasks = [new(i, i % 16) for i in range(200)]
    one.put(tasks[:100], NOW)
    other.put(tasks[100:], NOW)
    mine, others = claimed(one, 120), claimed(other, 120)
    assert (len(mine), len(others)) == (120, 80)
    assert {task.id for task in mine + others} == {task.id for task in tasks}
    assert all(one.finish([done(task) for task in mine], NOW))
    assert other.finish([done(task) for task in mine], NOW) == [False] * 120
    assert all(kept and kept.answer == OK for kept in other.collect([t.id for t in mine], NOW))
    assert one.cancel([others[0].id], NOW) != [None]
    assert other.finish([done(others[0])], NOW) == [False]
    assert box().counts().tasks == {"m": {"done": 120, "running": 79, "cancelled": 1}}


def test_an_owner_reads_its_homes_first_and_then_the_rest(box: Open) -> None:
    one, other = box(), box()
    one.sweep(NOW)
    other.sweep(NOW)
    one.sweep(NOW)
    one.put([new(i, i % 16) for i in range(160)], NOW)
    homes = set(one._claims.homes)
    near = claimed(one, 10 * len(homes))
    assert {partition_of(task.id) for task in near} == homes
    assert sorted(one._claims.homes + other._claims.homes) == list(range(16))
    assert len(claimed(one)) == 160 - len(near)


@pytest.mark.parametrize("at_once", [1, 32])
def test_the_homes_of_an_owner_that_runs_nothing_are_read_by_others(
    box: Open, at_once: int
) -> None:
    """Also while there is always more to do at home."""
    one, idle = box(), box()
    for store in (one, idle, one):
        store.sweep(NOW)
    one.put([new(i, i % 16) for i in range(16)], NOW)
    left = {new(i, i).id for i in idle._claims.homes}
    for turn in range(1, 90):
        one.put([new(100 * turn + p, p) for p in one._claims.homes], NOW)
        left -= {task.id for task in claimed(one, at_once)}
    assert left == set()


def test_a_claim_takes_so_many_bytes_over_all_partitions(box: Open) -> None:
    store = box()
    store.put([new(i, i % 16, input=bytes(100)) for i in range(64)], NOW)
    assert len(claimed(store, 64, 1)) == 1
    assert 1 <= len(claimed(store, 64, 450)) <= 4
    assert len(claimed(store, 64)) >= 59


def test_what_is_renewed_is_nobody_elses(box: Open, server: RedisServer) -> None:
    """Complaint 5: a long task is not handed out again while its owner lives."""
    one, other = box(), box(lease_s=0.0)
    one.put([new(1), new(2)], NOW)
    first, second = claimed(one)
    for task in (first, second):  # the last sign of life was long ago
        server.say("ZADD", "bp:{0}:run:m", "1", task.id)
    one._claims.renew()
    assert server.say("ZCOUNT", "bp:{0}:run:m", "-inf", "2") == b":0\r\n"
    assert box().reclaim(NOW).tasks == 0
    assert other.reclaim(NOW).tasks == 2, "without a lease they are lost at once"
    one._claims.renew()
    assert len(claimed(other)) == 2
    one._claims.renew()
    assert one.finish([done(first)], NOW) == [False], "a renewal takes nothing back"
    assert one.retry([Again(second.id, second.claim, NOW, True)], NOW) == [False]


def test_claims_whose_reply_was_lost_are_reclaimed_from_oneself(box: Open) -> None:
    store = box(lease_s=0.0)
    store.put([new(1)], NOW)
    (task,) = claimed(store)
    assert store.reclaim(NOW).tasks == 0
    store._claims._held.clear()  # as if the reply had not come
    assert store.reclaim(NOW).tasks == 1
    (again,) = claimed(store)
    assert again.claim == task.claim + 1


def test_an_end_whose_reply_was_lost_is_accepted_when_it_comes_again(
    box: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = box()
    store.put([new(1), new(2), new(3)], NOW)
    first, second, third = claimed(store)
    send = Link._send

    def broken(link: Link, commands: object, again: bytes) -> list[object]:
        send(link, commands, again)  # type: ignore[arg-type]
        raise OSError("the connection broke")

    again = Again(second.id, second.claim, NOW + 5, True)
    with monkeypatch.context() as patch:
        patch.setattr(Link, "_send", broken)
        with pytest.raises(StoreAway):
            store.finish([done(first)], NOW)
        with pytest.raises(StoreAway):
            store.retry([again], NOW)
    assert store.finish([done(first), done(third)], NOW) == [True, True]
    assert store.retry([again], NOW) == [True]
    assert store.finish([done(first)], NOW) == [False], "once only"


def test_a_connection_that_broke_is_made_again_within_the_call(
    box: Open, server: RedisServer
) -> None:
    store = box()
    store.put([new(1), new(2)], NOW)
    tasks = claimed(store)
    assert server.say("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes").startswith(b":")
    assert store.finish([done(task) for task in tasks], NOW) == [True, True]


def test_a_server_that_is_away_loses_nothing_that_it_has_accepted(
    box: Open, server: RedisServer
) -> None:
    store = box()
    store.put([new(1), new(2), new(3)], NOW)
    (running,) = claimed(store, 1)
    server.kill(signal.SIGKILL)
    for call in (lambda: store.put([new(4)], NOW), lambda: store.sweep(NOW), store.counts):
        with pytest.raises(StoreAway, match="unix://"):
            call()
    with pytest.raises(StoreAway):
        store.finish([done(running)], NOW)
    server.start()
    assert store.finish([done(running)], NOW) == [True]
    assert len(claimed(store)) == 2
    assert state(store, running.id) == "done"


def test_after_a_failure_nobody_waits_for_another_one(
    box: Open, server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = box()
    store.put([new(1)], NOW)
    monkeypatch.setattr("batchpool.tasks.redis_link._PAUSE_S", 1000.0)
    server.kill()
    with pytest.raises(StoreAway):
        store.put([new(2)], NOW)
    server.start()
    with pytest.raises(StoreAway, match="a moment ago"):
        store.put([new(2)], NOW)


def test_after_flushall_a_task_is_gone_and_never_queued_again(
    box: Open, server: RedisServer
) -> None:
    store = box()
    store.put([new(1), new(2)], NOW)
    (running,) = claimed(store, 1)
    server.say("FLUSHALL")
    assert store.look([new(1).id, new(2).id], NOW) == [None, None]
    assert store.finish([done(running)], NOW) == [False]
    assert store.retry([Again(running.id, running.claim, NOW, True)], NOW) == [False]
    assert store.collect([running.id], NOW) == [None]
    assert claimed(store) == []
    assert store.next_due_ms(["m"]) == [None]
    store.sweep(NOW)
    assert store.put([new(3)], NOW)[0].outcome is PutOutcome.NEW
    assert len(claimed(store)) == 1


def test_a_full_server_takes_no_new_task_and_lets_those_that_are_there_end(
    box: Open, server: RedisServer
) -> None:
    store = box()
    store.put([new(i, i) for i in range(5)], NOW)
    first, second, third, fourth = claimed(store, 4)
    server.say("CONFIG", "SET", "maxmemory", "1")
    try:
        assert store.put([new(9)], NOW)[0].outcome is PutOutcome.DISK_FULL
        with pytest.raises(StoreFull):
            store.replay([1], NOW, NOW)
        (fifth,) = claimed(store)
        ends = [done(first), letter(second), done(fifth)]
        assert store.finish(ends, NOW) == [True, True, True]
        assert store.retry([Again(third.id, third.claim, NOW + 5, True)], NOW) == [True]
        assert store.next_due_ms(["m"]) == [NOW + 5]
        assert store.cancel([fourth.id], NOW) != [None]
        assert store.collect([first.id], NOW) != [None]
        assert store.sweep(NOW + 5000).results == 4
        assert store.sweep(NOW + 10_000).ended == (third.id,)
    finally:
        server.say("CONFIG", "SET", "maxmemory", "0")


def test_a_replica_is_no_store(box: Open, server: RedisServer) -> None:
    store = box()
    store.put([new(1)], NOW)
    server.say("REPLICAOF", "127.0.0.1", str(free_port()))
    try:
        with pytest.raises(StoreAway, match=r"READONLY|read only|MASTERDOWN"):
            store.put([new(2)], NOW)
    finally:
        server.say("REPLICAOF", "NO", "ONE")
    assert store.put([new(2)], NOW)[0].outcome is PutOutcome.NEW


def test_nothing_is_left_of_tasks_that_were_dropped(box: Open, server: RedisServer) -> None:
    """Complaint 7: what is acknowledged is deleted too."""
    store = box()
    store.put([new(i, i % 3, key=bytes([i]) * 32) for i in range(30)], NOW)
    tasks = claimed(store, 20)
    store.finish([done(task) for task in tasks[:10]], NOW)
    store.finish([letter(task) for task in tasks[10:]], NOW)
    store.cancel([kept.id for kept in store.list_tasks("queued", "", 100)], NOW)
    numbers = [kept.letter for kept in store.letters("", "", 0, 100, (), whole=False)]
    assert store.drop_letters(numbers) == [True] * 10
    store.sweep(NOW + 1000)
    counts = store.counts()
    assert (counts.tasks, counts.letters, counts.bytes, counts.oldest_ms) == ({}, 0, 0, 0)
    names = server.say("KEYS", "*").decode()
    assert not re.search(r"bp:\{\d+\}:(t|i|l|later|w|lines|open|until|ended|dead|c)\b", names), (
        names
    )
    assert "run:" not in names
    assert "lock" not in names


def test_records_have_a_time_to_live_once_they_have_ended(box: Open, server: RedisServer) -> None:
    store = box()
    store.put([new(1, key=b"k" * 32)], NOW)
    for name in (f"t:{new(1).id}", f"i:{(b'k' * 32).hex()}"):
        assert server.say("PTTL", f"bp:{{0}}:{name}") == b":-1\r\n"
    store.finish([done(*claimed(store))], NOW)
    for name in (f"t:{new(1).id}", f"i:{(b'k' * 32).hex()}"):
        assert int(server.say("PTTL", f"bp:{{0}}:{name}")[1:]) > 1000


def test_a_sign_of_life_from_the_future_is_none(box: Open, server: RedisServer) -> None:
    """The server's clock went back: claims of a box that died would be held until it is there."""
    one, other = box(), box()
    one.put([new(1), new(2)], NOW)
    first, second = claimed(one)
    assert other.reclaim(NOW).tasks == 0
    server.say("ZADD", "bp:{0}:run:m", str(2**45), first.id)
    assert other.reclaim(NOW).tasks == 1
    assert [task.id for task in claimed(other)] == [first.id]
    assert one.finish([done(first), done(second)], NOW) == [False, True]


def test_claims_end_and_come_back_whatever_somebody_has_done_to_their_index(
    box: Open, server: RedisServer
) -> None:
    """The owner of a task is told by its record; what is renewed is in the index again."""
    one, other = box(), box(lease_s=0.0)
    one.put([new(1), new(2)], NOW)
    first, second = claimed(one)
    server.say("DEL", "bp:{0}:run:m")
    assert one.finish([done(first)], NOW) == [True]
    one._claims.renew()
    assert other.reclaim(NOW).tasks == 1
    assert [task.id for task in claimed(other)] == [second.id]


@pytest.mark.parametrize("version", ["5", "2"])
def test_a_store_of_another_release_is_refused(
    box: Open, server: RedisServer, version: str
) -> None:
    server.say("HSET", "bp:cfg", "version", version, "partitions", "16")
    with pytest.raises(StoreAway, match=rf"version {version} .* knows 4"):
        box().put([new(1)], NOW)


def test_the_number_of_partitions_is_that_of_the_store(box: Open, server: RedisServer) -> None:
    server.say("HSET", "bp:cfg", "version", "4", "partitions", "3")
    store = box()
    store.put([new(1, 5)], NOW)
    assert server.say("EXISTS", "bp:{2}:q:m") == b":1\r\n"
    assert len(claimed(store)) == 1


def test_a_password_is_used_and_never_told(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.say("ACL", "SETUSER", "tasks", "on", ">secret-word", "~bp:*", "+@all")
    try:
        url = server.address.url.replace("unix://", "unix://tasks@")
        for password, is_right in (("secret-word", True), ("wrong-word", False)):
            store = RedisStore(StoreAddress(url, password), LIMITS, lambda: NOW)
            with caplog.at_level(logging.DEBUG):
                if is_right:
                    assert store.put([new(1)], NOW)[0].outcome is PutOutcome.NEW
                else:
                    with pytest.raises(StoreAway) as refused:
                        store.put([new(1)], NOW)
                    assert password not in str(refused.value)
            assert password not in caplog.text + repr(StoreAddress(url, password))
    finally:
        server.say("ACL", "DELUSER", "tasks")


def fails_after(monkeypatch: pytest.MonkeyPatch, verb: str, calls: int) -> None:
    """The server goes before the script `verb` has been called so often."""
    scripts, left = Cells.scripts, [calls]

    def failing(cells: Cells, name: str, *words: object, **more: object) -> object:
        if name == verb:
            left[0] -= 1
            if left[0] < 0:
                raise StoreAway("gone")
        return scripts(cells, name, *words, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(Cells, "scripts", failing)


def test_what_a_failed_group_had_claimed_is_queued_again_and_not_held_for_ever(
    box: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = box(lease_s=0.0)
    store.put([new(i, i % 16) for i in range(40)], NOW)
    ended = claimed(store, 5)
    with monkeypatch.context() as patch:
        fails_after(patch, "claim", 1)
        with pytest.raises(StoreAway), store.group():
            assert store.finish([done(task) for task in ended], NOW) == [True] * 5
            assert len(claimed(store, 10)) == 10
            claimed(store, 10)
    assert store.reclaim(NOW).tasks == 10
    assert store.finish([done(task) for task in ended], NOW) == [True] * 5, "nobody has heard of it"
    assert len(claimed(store)) == 35


def test_what_was_lost_too_often_is_found_again_where_the_server_went_meanwhile(
    box: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("batchpool.tasks.redis_claims.LOSSES_MOST", 1)
    store = box()
    tasks = [new(0), new(1, 1), structs.replace(new(2, 2), model="z")]
    store.put(tasks, NOW)
    store.claim([Want("m", 9, 9000), Want("z", 9, 9000)], NOW)
    heir = box(lease_s=0.0)
    with monkeypatch.context() as patch:
        fails_after(patch, "reclaim", 1)
        with pytest.raises(StoreAway):
            heir.reclaim(NOW)
    assert {task.id for task in heir.reclaim(NOW).lost} == {task.id for task in tasks}
