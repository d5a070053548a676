"""CPU of the store of tasks alone, by the size of its groups; of two checkouts in turns.

    python -m bench.task_store [--groups 18 64 128] [--origins 4] [--waiting 0] [--turns 4]
        [--against CHECKOUT] [--save FILE]

A task of 2 KB is put and claimed, ends with 2 KB, is marked as read and dropped: in three
transactions of a group each, as the task process makes them. CPU is that of the process, with the
making of the tasks; the wall clock counts nowhere, so that other programs disturb it less. Each
figure is of a process of its own, and checkouts take turns. With --waiting so many tasks wait all
the time, so that no new one is claimed as it comes.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.support.two_checkouts import in_turns, parser_of, use

_TASKS = 7000  # of one figure
_BODY_BYTES = 2100
_TICK_MS = 1000


def cpu_us_per_task(group: int, origins: int, waiting: int) -> float:
    """CPU of one task (us), in groups of so many from so many origins, while others wait."""
    from batchpool.tasks.record import Ended, NewTask, StoreLimits, TaskAnswer, TaskState, Want
    from batchpool.tasks.record import task_id as new_id
    from batchpool.tasks.sqlite import SqliteStore

    limits = StoreLimits(10**6, 2**32, 3_600_000, 60_000, evict_on_read=True)
    body = os.urandom(_BODY_BYTES)
    answer = TaskAnswer(200, ((b"content-type", b"application/octet-stream"),), body)
    rounds = _TASKS // group

    def new_tasks(now: int) -> list[NewTask]:
        return [
            NewTask(
                new_id(now, os.urandom(16)), "m", 1, body, b"form", f"client {i % origins}", "",
                now, now + 10**9,
            )
            for i in range(group)
        ]  # fmt: skip

    with tempfile.TemporaryDirectory(prefix="bp-task-store-") as folder:
        store = SqliteStore(Path(folder) / "tasks", limits)
        for _ in range(0, waiting, group):
            store.put(new_tasks(10**12), 10**12)
        begun_s = time.process_time()
        for number in range(rounds):
            now = 10**12 + _TICK_MS * number
            with store.group():
                new = new_tasks(now)
                wants = [Want("m", group, 2**30)]
                if hasattr(store, "put_and_claim"):  # another checkout may have none
                    _, (tasks,) = store.put_and_claim(new, wants, now)
                else:
                    store.put(new, now)
                    tasks = store.claim(wants, now)
            with store.group():
                ends = [Ended(task.id, task.claim, TaskState.DONE, answer) for task in tasks]
                if len(ends) != group or not all(store.finish(ends, now)):
                    raise SystemExit("a task was not claimed, or its end was refused")
            with store.group():
                store.mark_read([task.id for task in tasks], now)
            while store.sweep(now).more:
                pass
        used_s = time.process_time() - begun_s
        store.close()
    return used_s / (rounds * group) * 1e6


def main() -> None:
    parser = parser_of(__doc__, turns=4)
    parser.add_argument("--groups", type=int, nargs="+", default=[18, 64, 128])
    parser.add_argument("--origins", type=int, default=4)
    parser.add_argument("--waiting", type=int, default=0, metavar="TASKS")
    args = parser.parse_args()
    if args.one:
        use(args.one)
        print(cpu_us_per_task(args.groups[0], args.origins, args.waiting))
        return
    from bench.support.machine import report

    rows: dict[str, Any] = {}
    for group in args.groups:
        words = ["--groups", str(group), "--origins", str(args.origins)]
        words += ["--waiting", str(args.waiting)]
        found = in_turns("bench.task_store", words, args.against, args.turns)
        figures = {name: [round(cpu_us, 1) for (cpu_us,) in of] for name, of in found.items()}
        rows[f"groups of {group}"] = {
            name: {"median_us": statistics.median(of), "least_us": min(of), "most_us": max(of)}
            for name, of in figures.items()
        }
    report("the store of tasks alone, CPU a task", rows, args.save)


if __name__ == "__main__":
    main()
