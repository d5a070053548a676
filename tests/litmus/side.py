"""One side of a litmus test, a process of its own: python -m tests.litmus.side ROLE JSON.

The JSON says which segment (a descriptor), how much to do, and which rule to break, if any.
At the end the side prints what it counted, as JSON. A broken promise ends it with status 1 and
a line on stderr; so does a side that makes no progress for `stall_s`.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from tests.litmus.promises import Broken, Progress, Told, end_with_parent

STEP = 1 << 16


# -- single words ---------------------------------------------------------------------------


def words_writer(task: dict[str, Any]) -> dict[str, Any]:
    """Two patterns in turn into words of every kind; `halves` stores one of them in two parts."""
    from tests.litmus import places

    segment, names = places.words(task["fd"])
    stores = places.stores(segment, halves=task["halves"])
    places.meet(segment, "writer", "reader")
    for i in range(4 * task["rounds"]):
        for store in stores:
            store(i & 1)
        if i > task["rounds"] and places.said(segment, "reader has seen enough"):
            break
    places.say(segment, "writer is done")
    return {"kinds": names}


def words_reader(task: dict[str, Any]) -> dict[str, Any]:
    """Only the two patterns are ever seen, and both are."""
    from tests.litmus import places

    segment, _ = places.words(task["fd"])
    loads = places.loads(segment)
    changes = dict.fromkeys(loads, 0)
    last = {name: load() for name, load in loads.items()}
    places.meet(segment, "reader", "writer")
    while not places.said(segment, "writer is done"):
        for name, load in loads.items():
            value = load()
            if value not in (0, places.ONES[name]):
                raise Broken(f"torn word: {name} reads as {value:#x}")
            changes[name] += value != last[name]
            last[name] = value
        if min(changes.values()) > 1000:
            places.say(segment, "reader has seen enough")
    return {"changes": changes}


# -- rings of numbered entries --------------------------------------------------------------


def expected(first: int, n: int) -> Any:
    """The entries of the counts first..first+n: every bit of them depends on the count."""
    import numpy as np

    z = np.arange(first, first + n, dtype=np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


class Expected:
    """Expected values, computed a step ahead."""

    def __init__(self) -> None:
        self._from = -1
        self._block: Any = None

    def __call__(self, first: int, n: int) -> Any:
        at = first - self._from
        if self._from < 0 or at < 0 or at + n > len(self._block):
            self._from, at = first, 0
            self._block = expected(first, max(n, STEP))
        return self._block[at : at + n]


def ring_producer(task: dict[str, Any]) -> dict[str, Any]:
    """`total` numbered entries, or until it is told, in groups of random sizes."""
    import random

    from batchpool.shm.ring import Producer
    from tests.litmus import places

    producer = Producer(*places.ring(task["fd"], task["capacity"], "writer", "reader"))
    rng = random.Random(task["seed"])
    entries, progress = Expected(), Progress(task["stall_s"])
    first, told = task["start"], Told(task["total"])
    sent = groups = 0
    while left := told.more(sent):
        room = producer.room()
        if not room:
            progress.none()
            continue
        progress.made()
        n = min(room, left, rng.choice((1, 2, 3, 7, 8, 64, task["capacity"])))
        group = entries(first + sent, n)
        if n <= 8 and rng.random() < 0.5:
            producer.push_few(group.tolist())
        else:
            producer.push(group)
        sent += n
        groups += 1
    return {"sent": sent, "groups": groups}


def ring_consumer(task: dict[str, Any]) -> dict[str, Any]:
    """Every entry once, whole and in order; the head moves after some or all of a look."""
    import random

    from batchpool.shm.ring import Consumer
    from tests.litmus import places

    consumer = Consumer(*places.ring(task["fd"], task["capacity"], "reader", "writer"))
    rng = random.Random(task["seed"])
    entries, progress = Expected(), Progress(task["stall_s"])
    first, told = task["start"], Told(task["total"])
    received = looks = 0
    while told.more(received) or (told.enough and consumer.pending()):
        found = consumer.peek()
        n = len(found)
        if not n:
            progress.none()
            continue
        progress.made()
        looks += 1
        want = entries(first + received, n)
        if not (found == want).all():
            at = int((found != want).argmax())
            raise Broken(f"entry {received + at} is {found[at]:#x}; {want[at]:#x} was published")
        n = n if rng.random() < 0.8 else rng.randint(1, n)
        consumer.advance(n)
        received += n
    if consumer.pending():
        raise Broken(f"{consumer.pending()} entries more than were sent")
    return {"received": received, "looks": looks}


# -- lanes ----------------------------------------------------------------------------------


def lane_client(task: dict[str, Any]) -> dict[str, Any]:
    from tests.litmus.road import Client

    return Client(task).run()


def lane_server(task: dict[str, Any]) -> dict[str, Any]:
    from tests.litmus.road import Server

    return Server(task).run()


ROLES = {
    "words-writer": words_writer,
    "words-reader": words_reader,
    "producer": ring_producer,
    "consumer": ring_consumer,
    "client": lane_client,
    "server": lane_server,
}


def main() -> int:
    end_with_parent()
    role, task = sys.argv[1], json.loads(sys.argv[2])
    if task.get("rule"):
        from tests.litmus import mutants

        mutants.install(task["rule"])
    try:
        counted = ROLES[role](task)
    except Broken as broken:
        print(broken, file=sys.stderr)
        return 1
    print(json.dumps(counted))
    return 0


if __name__ == "__main__":
    sys.exit(main())
