"""The store in Redis beside values that it has not written: no record keeps others from theirs."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from batchpool.tasks.record import Again, Ended, TaskAnswer, TaskState
from batchpool.tasks.redis_forms import number, state_of, text
from batchpool.tasks.redis_store import RedisStore
from batchpool.tasks.store import StoreAway
from tests.redis_server import RedisServer, redis_server
from tests.unit.tasks.redis_calls import LIMITS, NOW, claimed, done, letter, new

LATE = NOW + 20_000  # every deadline has passed
TASK, LETTER = "bp:{0}:t:%s", "bp:{0}:l:%s"


@pytest.fixture(scope="module")
def shared_server() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


@pytest.fixture
def server(shared_server: RedisServer) -> RedisServer:
    shared_server.say("FLUSHALL")
    return shared_server


def everything(store: RedisStore) -> list[object]:
    """The answers to callers and operators about all tasks, which can be sent: their numbers."""
    ids = [new(number).id for number in range(6)]
    kept = [found.form for found in store.look(ids, NOW) if found]
    results = [found.form for found in store.collect(ids, NOW) if found]
    listed, letters = store.list_tasks("", "", 100), store.letters("", "", 0, 100, (), whole=True)
    asked = [kept, results, listed, letters, store.counts(), sorted(store.models())]
    msgspec.msgpack.encode(asked)
    return [len(each) for each in (kept, results, listed, letters)]


@pytest.mark.parametrize(
    ("whose", "field", "value"),
    [
        ("queued", "state", "9"),
        ("queued", "state", "done"),
        ("queued", "attempts", "nan"),
        ("queued", "rows", "many"),
        ("queued", "submitted", "1e999"),
        ("queued", "submitted", "9" * 40),
        ("queued", "deadline", "soon"),
        ("queued", "size", "large"),
        ("queued", "id", "other"),
        ("ended", "headers", "\udcc1"),
        ("ended", "error", "\udcff"),
        ("ended", "status", "good"),
        ("letter", "facts", "\udcc1"),
        ("letter", "facts", "none"),
        ("letter", "rows", "x"),
        ("letter", "error", "\udcff"),
        ("letter", "model", "\udcff"),
    ],
)
def test_a_damaged_field_costs_no_other_task_anything(
    server: RedisServer, whose: str, field: str, value: str
) -> None:
    store = RedisStore(server.address, LIMITS, lambda: NOW, 600.0)
    store.put([new(number) for number in range(5)], NOW)
    bad, good = claimed(store, 2)
    assert store.finish([letter(bad), done(good)], NOW) == [True, True]
    (kept,) = store.letters("", "", 0, 1, (), whole=False)
    (queued, *others) = sorted({new(number).id for number in range(5)} - {bad.id, good.id})
    key = {"queued": TASK % queued, "ended": TASK % good.id, "letter": LETTER % kept.letter}[whose]
    assert server.say("HSET", key, field, value).startswith(b":")
    assert everything(store) == [5, 5, 5, 1]
    store.put([new(5)], NOW)
    taken = {task.id for task in claimed(store)}
    assert {*others, new(5).id} <= taken
    store.reclaim(NOW)
    store.next_due_ms(["m"])
    store.sweep(LATE)
    store.sweep(LATE + LIMITS.result_ttl_ms)
    assert set(store.look(others, NOW)) == {None}, "they were ended, and dropped in time"


@pytest.mark.parametrize(
    ("key", "score", "member"),
    [
        ("ended", 1, "garbage"),
        ("ended", 1, "\udcff 2 x m"),
        ("until", 1, "garbage"),
        ("until", 1, new(1, 3).id),
        ("open", 1, "\udcff"),
        ("dead", 1, "x"),
        ("w:m", 0, "garbage"),
        ("q:m", 0, "nobody"),
        ("q:m:me", 0, "garbage"),
        ("left:m", 0, "nobody"),
        ("later:m", 0, "garbage"),
    ],
)
def test_what_is_no_task_is_swept_away(
    server: RedisServer, key: str, score: int, member: str
) -> None:
    store = RedisStore(server.address, LIMITS, lambda: NOW, 600.0)
    store.put([new(0)], NOW)
    for n in range(64):  # as many as a sweep takes of a partition
        said = f"{member}{n or ''}" if not member.startswith("t_") or not n else member
        assert server.say("ZADD", f"bp:{{0}}:{key}", str(score), said).startswith(b":")
    everything(store)
    assert sum(len(claimed(store)) for _ in range(65)) == 1, "each claim takes one away"
    found, sweeps = store.sweep(LATE), 1
    while found.more:
        found, sweeps = store.sweep(LATE), sweeps + 1
        assert sweeps < 10, "a sweep that never ends"
    assert store.look([new(0).id], NOW)[0].form.state == "failed"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "key",
    ["n", "c", "b", "holders", "dead_of:me", "w:m", "q:m", "q:m:me", "at:m", "ends:m:me", "turn:m",
     "left:m", "run:m", "later:m", "open", "until", "ended", "dead",
     f"t:{new(1).id}", f"i:{(b'k' * 32).hex()}", "bp:boxes", "bp:letters"],
)  # fmt: skip
def test_a_value_of_a_foreign_type_costs_what_it_has_replaced_and_nothing_else(
    server: RedisServer, key: str
) -> None:
    """Without a look at it each call of its partition would fail, and with it all others."""
    store = RedisStore(server.address, LIMITS, lambda: NOW, 600.0)
    store.put([new(1, key=b"k" * 32), new(2, 1)], NOW)
    name = key if key.startswith("bp:") else f"bp:{{0}}:{key}"
    server.say("DEL", name)
    assert server.say("RPUSH", name, "x") == b":1\r\n"
    everything(store)
    assert store.next_due_ms(["m"]) == [0]
    store.put([new(3, key=b"k" * 32), new(4), new(5)], NOW)
    store.cancel([new(5).id], NOW)
    tasks = claimed(store)
    assert {new(2, 1).id, new(4).id} <= {task.id for task in tasks}
    assert all(store.retry([Again(task.id, task.claim, NOW - 1, True) for task in tasks], NOW))
    tasks = claimed(store)
    assert {new(2, 1).id, new(4).id} <= {task.id for task in tasks}
    store._claims.renew()
    assert store.reclaim(NOW).tasks == 0
    ends = [letter(task) if task.id == new(4).id else done(task) for task in tasks]
    assert all(store.finish(ends, NOW))
    assert [kept.id for kept in store.letters("", "", 0, 9, (), whole=True)] == [new(4).id]
    store.sweep(LATE)
    assert server.say("TYPE", name) != b"+list\r\n"


def test_an_ended_task_that_still_has_a_deadline_keeps_no_sweep_from_its_end(
    server: RedisServer,
) -> None:
    """As where a user may not use a command in the middle of a script."""
    store = RedisStore(server.address, LIMITS, lambda: NOW, 600.0)
    store.put([new(number) for number in range(65)], NOW)
    store.finish([done(task) for task in claimed(store, 64)], NOW)
    for n in range(65):
        server.say("ZADD", "bp:{0}:until", str(NOW), new(n).id)
    found = store.sweep(NOW)
    while found.more:
        found = store.sweep(NOW)
    assert found.ended == ()
    assert server.say("ZCARD", "bp:{0}:until") == b":1\r\n", "that of the open task, in its place"
    assert len(store.sweep(LATE).ended) == 1


def test_a_result_that_no_server_takes_fails_its_task_and_keeps_no_other_from_its_end(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("batchpool.tasks.redis_claims.MOST_BODY_BYTES", 10)
    store = RedisStore(server.address, LIMITS, lambda: NOW, 600.0)
    store.put([new(1), new(2)], NOW)
    large, small = claimed(store)
    answer = TaskAnswer(200, (), bytes(11))
    ends = [Ended(large.id, large.claim, TaskState.DONE, answer), done(small)]
    assert store.finish(ends, NOW) == [True, True]
    failed, good = store.collect([large.id, small.id], NOW)
    assert failed is not None
    assert failed.answer is not None
    assert (failed.form.state, failed.form.code, failed.answer.status) == (
        "failed", "too_large", 413,
    )  # fmt: skip
    assert "takes 11 bytes; at most 10 are kept" in failed.form.error
    assert good is not None
    assert good.form.state == "done"
    (kept,) = store.letters("", "too_large", 0, 9, (), whole=True)
    assert kept.input == b"input"


def test_what_one_partition_fails_with_is_told_with_its_key(
    server: RedisServer,
) -> None:
    store = RedisStore(server.address, LIMITS, lambda: NOW, 600.0)
    store.put([new(1)], NOW)
    server.say("DEL", "bp:cfg")
    server.say("SET", "bp:cfg", "x")
    with pytest.raises(StoreAway, match=r"WRONGTYPE .* \(of bp:cfg\)"):
        RedisStore(server.address, LIMITS, lambda: NOW, 600.0).put([new(2)], NOW)


def test_a_store_without_partitions_is_told_of(server: RedisServer) -> None:
    server.say("HSET", "bp:cfg", "version", "3", "partitions", "none")
    store = RedisStore(server.address, LIMITS, lambda: NOW, 600.0)
    with pytest.raises(StoreAway, match="has 'none' partitions; name another database"):
        store.put([new(0)], NOW)


@pytest.mark.parametrize(
    ("value", "found"),
    [(b"7", 7), (b"7.0", 7), (None, 0), (b"", 0), (b"x", 0), (b"inf", 0), (b"-1", 0), (b"nan", 0)],
)
def test_a_number(value: bytes | None, found: int) -> None:
    assert number(value) == found
    assert text(value) == (value or b"").decode()


def test_a_state_that_is_none_has_ended() -> None:
    assert [state_of(value).label for value in (b"1", None, b"9", b"x")] == [
        "running", "queued", "failed", "failed",
    ]  # fmt: skip
