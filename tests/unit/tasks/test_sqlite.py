"""The store in SQLite beyond the contract: its files, its version, and crashes."""

from __future__ import annotations

import errno
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from msgspec import structs

from batchpool.tasks.body_files import LONG_BYTES
from batchpool.tasks.claims import DUE, HEADS
from batchpool.tasks.disk import Disk
from batchpool.tasks.record import (
    TOKEN_BYTES,
    Ended,
    NewTask,
    PutOutcome,
    StoreLimits,
    TaskAnswer,
    TaskState,
    Want,
    task_id,
)
from batchpool.tasks.sqlite import SqliteStore
from batchpool.tasks.store import StoreAway, StoreFull

LIMITS = StoreLimits(open=10**6, bytes=2**30, result_ttl_ms=1000, grace_ms=0, evict_on_read=True)
LONG = bytes(LONG_BYTES + 1)


def new(number: int, size: int = 10) -> NewTask:
    identifier = task_id(1, number.to_bytes(TOKEN_BYTES, "big"))
    return NewTask(identifier, "m", 1, bytes(size), b"", "me", "", 1, 10**6)


def run(store: SqliteStore, body: bytes = b"", n: int = 1) -> list[str]:
    """Run and end tasks; their ids."""
    tasks = store.claim([Want("m", n, 2**30)], 1)
    answer = TaskAnswer(200, (), body)
    ends = [Ended(task.id, task.claim, TaskState.DONE, answer) for task in tasks]
    assert all(store.finish(ends, 1))
    return [task.id for task in tasks]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    store = SqliteStore(tmp_path / "tasks", LIMITS)
    yield store
    store.close()


def files(tmp_path: Path) -> list[str]:
    return sorted(entry.name for entry in (tmp_path / "tasks/bodies").iterdir())


def test_long_bodies_are_files_that_go_with_their_tasks(store: SqliteStore, tmp_path: Path) -> None:
    store.put([new(1, len(LONG)), new(2)], 1)
    assert files(tmp_path) == [f"{new(1).id}.in"]
    assert store.kept_bytes > len(LONG)
    run(store, LONG)
    assert files(tmp_path) == [f"{new(1).id}.out"]
    looks = store.collect([new(1).id, new(2).id], 1)
    assert [kept is not None and kept.is_long for kept in looks] == [True, False]
    store.cancel([new(1).id], 1)
    assert files(tmp_path) == []
    run(store, LONG)
    store.sweep(1001)
    assert files(tmp_path) == []


def test_files_that_no_row_names_are_removed_at_the_start(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "tasks", LIMITS)
    store.put([new(1, len(LONG))], 1)
    store.close()
    for name in ("t_orphan.in", "t_half.out.tmp"):
        (tmp_path / "tasks/bodies" / name).write_bytes(b"x")
    store = SqliteStore(tmp_path / "tasks", LIMITS)
    assert files(tmp_path) == [f"{new(1).id}.in"]
    assert [len(task.input) for task in store.claim([Want("m", 1, 1)], 1)] == [len(LONG)]
    store.close()


def test_a_second_process_is_refused(store: SqliteStore, tmp_path: Path) -> None:
    with pytest.raises(StoreAway, match="another pool has the tasks in"):
        SqliteStore(tmp_path / "tasks", LIMITS)


def _newer(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA user_version = 99")


def _foreign(path: Path) -> None:
    path.unlink()
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE songs (name)")


def _damaged(path: Path) -> None:
    path.write_bytes(b"no database at all, " * 1000)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (_newer, "is of version 99, made by a newer batchpool; this one knows 4"),
        (_foreign, "is no database of tasks"),
        (_damaged, "cannot be opened"),
    ],
)
def test_a_database_that_cannot_be_understood_is_refused_and_left_as_it_is(
    tmp_path: Path, change: Callable[[Path], None], text: str
) -> None:
    SqliteStore(tmp_path / "tasks", LIMITS).close()
    path = tmp_path / "tasks/tasks.db"
    change(path)
    before = path.read_bytes()
    for _ in range(2):
        with pytest.raises(StoreAway, match=text):
            SqliteStore(tmp_path / "tasks", LIMITS)
    assert path.read_bytes() == before


def test_tasks_that_come_together_are_each_told_what_they_are(store: SqliteStore) -> None:
    """One statement adds many; where one of them is known they go in one after another."""
    first = store.put([new(i) for i in range(70)], 1)
    assert {put.outcome for put in first} == {PutOutcome.NEW}
    mixed = store.put([new(i) for i in range(60, 100)], 1)
    assert [put.outcome for put in mixed] == [PutOutcome.KNOWN] * 10 + [PutOutcome.NEW] * 30
    assert store.counts().tasks == {"m": {"queued": 100}}
    assert len(run(store, n=200)) == 100
    assert store.counts().tasks == {"m": {"done": 100}}


def test_a_sweep_gives_the_disk_back_what_is_free_at_once(store: SqliteStore) -> None:
    """In few transactions, each of which waits for the disk."""
    store.put([new(i, 6000) for i in range(400)], 1)
    run(store, n=400)
    free, sweeps = [], 0
    while store.sweep(10**6).more:
        sweeps += 1
        free.append(store._free_pages)
    assert sweeps <= 2, free
    assert store._free_pages <= 128


def test_tasks_that_come_together_have_turns_as_if_they_came_one_after_another(
    store: SqliteStore,
) -> None:
    """However many of a caller's are added with one statement, another one has his in between."""
    many = [structs.replace(new(i), caller="many") for i in range(40)]
    store.put(many, 1)
    store.put([structs.replace(new(40 + i), caller="few") for i in range(2)], 1)
    order = [task.id for task in store.claim([Want("m", 4, 2**30)], 1)]
    assert order == [new(i).id for i in (0, 40, 1, 41)]


def test_a_claim_reads_only_the_tasks_that_it_takes(store: SqliteStore) -> None:
    """However many wait: of each origin in turns by the index."""
    values = ("m", 5, 0, "10.0.0.1", "10.0.0.2")
    plan = [row[-1] for row in store._db.execute(f"EXPLAIN QUERY PLAN {HEADS[2]}", values)]
    assert "SEARCH tasks USING INDEX turns (model=? AND origin=? AND turn>?)" in plan
    assert not any("B-TREE" in step or step.startswith("SCAN tasks") for step in plan)
    (plan,) = store._db.execute(f"EXPLAIN QUERY PLAN {DUE}", ("m", 5, 9)).fetchall()
    assert "USING INDEX waits (model=? AND due_ms<?)" in plan[-1]


def test_a_torn_end_of_the_log_loses_nothing_that_was_committed(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "tasks", LIMITS)
    for i in range(20):
        store.put([new(i, 3000)], 1)
    log = tmp_path / "tasks/tasks.db-wal"
    committed = log.read_bytes()
    # What a crash in the middle of the next commit leaves: a part of a frame, or garbage.
    log.write_bytes(committed + committed[32:3000] + os.urandom(5000))
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("tasks.db", "tasks.db-wal"):
        (copy / name).write_bytes((tmp_path / "tasks" / name).read_bytes())
    heir = SqliteStore(copy, LIMITS)
    assert {form.form.id for form in heir.look([new(i).id for i in range(20)], 1) if form} == {
        new(i).id for i in range(20)
    }
    heir.close()
    store.close()


def test_a_disk_that_is_full_undoes_the_group_and_gives_up_the_reserve(
    store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the bytes that are free then are held for the log, as far as a reserve goes."""
    given_up: list[int] = []
    monkeypatch.setattr(store._disk, "hold_half", lambda: given_up.append(store._disk._held()))

    def no_space(fd: int, data: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    store.put([new(1)], 1)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", no_space)
        with pytest.raises(StoreFull), store.group():
            store.put([new(2), new(3, len(LONG))], 1)
    assert files(tmp_path) == []
    assert given_up == [0]
    assert store.counts().tasks == {"m": {"queued": 1}}
    assert store.put([new(3, len(LONG))], 1)[0].outcome is PutOutcome.NEW


def test_a_disk_that_is_full_gets_back_what_the_log_has(store: SqliteStore, tmp_path: Path) -> None:
    """Else a log that the last writes made large would hold the bytes for ever."""
    store.put([new(i, LONG_BYTES) for i in range(4)], 1)
    log = tmp_path / "tasks/tasks.db-wal"
    assert log.stat().st_size > 4 * LONG_BYTES
    with pytest.raises(StoreFull), store.group():
        raise OSError(errno.ENOSPC, "full")
    assert log.stat().st_size == 0
    assert len(run(store, n=4)) == 4


def test_a_disk_that_is_short_has_nothing_in_the_log_between_groups(
    store: SqliteStore, tmp_path: Path
) -> None:
    log = tmp_path / "tasks/tasks.db-wal"
    store.put([new(1, LONG_BYTES)], 1)
    assert log.stat().st_size > 0
    store._disk.give_up_reserve()
    assert len(run(store)) == 1
    assert log.stat().st_size == 0


@pytest.mark.parametrize(
    ("total", "pages"), [(2**40, 1000), (8 << 20, 25), (1 << 20, 3), (1 << 12, 1)]
)
def test_the_log_is_small_where_the_disk_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, total: int, pages: int
) -> None:
    """A checkpoint takes as many bytes as the log has, and less than that is kept free."""
    blocks = os.statvfs_result((1, 1, total, total, total, 9, 9, 9, 0, 255))
    monkeypatch.setattr(os, "statvfs", lambda path: blocks)
    monkeypatch.setattr(os, "posix_fallocate", lambda *args: None)
    assert Disk(tmp_path).log_pages(4096) == pages


def test_new_tasks_are_refused_before_the_disk_is_full(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put([new(1)], 1)
    monkeypatch.setattr(store._disk, "_free", lambda: (2**20, 2**30))
    assert store.put([new(2)], 1)[0].outcome is PutOutcome.DISK_FULL
    assert store.put([new(1)], 1)[0].outcome is PutOutcome.KNOWN
    assert run(store) == [new(1).id]


def test_a_store_that_was_emptied_gives_its_bytes_back(tmp_path: Path) -> None:
    """C71: the file shrinks when nothing is kept any more."""
    store = SqliteStore(tmp_path / "tasks", LIMITS)
    store.put([new(i, 16_000) for i in range(200)], 1)
    run(store, bytes(16_000), 200)
    assert store.kept_bytes > 3 * 10**6
    while store.sweep(1001).more:
        pass
    assert store.counts().tasks == {}
    assert store.kept_bytes < 10**6
    store.close()
    assert (tmp_path / "tasks/tasks.db").stat().st_size < 2 * 10**6


_KILLED = """
import os, signal, sys
from pathlib import Path
from batchpool.tasks.sqlite import SqliteStore
from tests.unit.tasks.test_sqlite import LIMITS, LONG, new

class Killed:
    def __init__(self, db, point, commits):
        self._db, self._point, self._left = db, point, commits
    def __getattr__(self, name):
        return getattr(self._db, name)
    def execute(self, statement, *values):
        if statement == "COMMIT":
            self._left -= 1
            if not self._left and self._point == "before":
                os.kill(os.getpid(), signal.SIGKILL)
        found = self._db.execute(statement, *values)
        if statement == "COMMIT" and not self._left and self._point == "after":
            os.kill(os.getpid(), signal.SIGKILL)
        return found

store = SqliteStore(Path(sys.argv[1]), LIMITS)
store._transactions._db = Killed(store._db, sys.argv[2], 3)
for i in range(10):
    store.put([new(2 * i), new(2 * i + 1, len(LONG))], 1)
    print(i, flush=True)
"""


@pytest.mark.parametrize(("point", "kept"), [("before", 4), ("after", 6)])
def test_a_process_that_is_killed_at_a_commit_keeps_what_it_has_told(
    tmp_path: Path, point: str, kept: int
) -> None:
    """Complaint 10: killed before a commit nothing of it is there, killed after it everything."""
    found = subprocess.run(
        [sys.executable, "-c", _KILLED, str(tmp_path / "tasks"), point],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert found.returncode == -signal.SIGKILL, found.stderr
    told = len(found.stdout.split())
    assert told == 2
    heir = SqliteStore(tmp_path / "tasks", LIMITS)
    assert heir.counts().tasks == {"m": {"queued": kept}}
    assert kept >= 2 * told
    assert len(files(tmp_path)) == kept // 2, "files of what was not kept are gone"
    assert len(heir.claim([Want("m", 100, 2**30)], 1)) == kept
    heir.close()


def test_a_lost_file_of_an_input_keeps_no_task_from_running(
    store: SqliteStore, tmp_path: Path
) -> None:
    """Nor a letter from being listed, nor a lost result from being asked for."""
    store.put([new(1, len(LONG)), new(2)], 1)
    for entry in (tmp_path / "tasks/bodies").iterdir():
        entry.unlink()
    lost, good = store.claim([Want("m", 2, 2**30)], 1)
    assert (lost.input, good.input) == (b"", bytes(10))
    failed = TaskAnswer(500, (), b"")
    ends = [
        Ended(lost.id, lost.claim, TaskState.FAILED, failed, code="internal", is_letter=True),
        Ended(good.id, good.claim, TaskState.DONE, TaskAnswer(200, (), LONG)),
    ]
    assert store.finish(ends, 1) == [True, True]
    (letter,) = store.letters("", "", 0, 10, (), whole=True)
    assert letter.input == b""
    (tmp_path / f"tasks/bodies/{good.id}.out").unlink()
    assert store.body(good.id) is None


def test_letters_of_who_has_most_make_room_for_those_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest of them, however old those of others are; also after the next start."""
    monkeypatch.setattr("batchpool.tasks.letter_box.LETTERS_MOST", 3)
    failed = TaskAnswer(500, (), b"no")

    def fail(store: SqliteStore, numbers: range) -> set[str]:
        tasks = [structs.replace(new(i, 3000), origin="many" if i else "few") for i in numbers]
        for task in tasks:
            store.put([task], 1)
            (claim,) = store.claim([Want("m", 1, 2**30)], 1)
            store.finish([Ended(claim.id, 1, TaskState.FAILED, failed, is_letter=True)], 1)
        return {form.id for form in store.letters("", "", 0, 100, (), whole=False)}

    store = SqliteStore(tmp_path / "tasks", LIMITS)
    assert fail(store, range(6)) == {new(i).id for i in (0, 4, 5)}
    store.close()
    store = SqliteStore(tmp_path / "tasks", LIMITS)
    assert fail(store, range(6, 8)) == {new(i).id for i in (0, 6, 7)}
    store.close()
