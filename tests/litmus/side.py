"""One side of a litmus test, a process of its own: python -m tests.litmus.side ROLE JSON.

The JSON names the segment (a descriptor), the amount of work, and the rule to break, if any. At
the end the side prints its counts as JSON. A violation ends it with status 1 and a line on stderr;
so does a stall of `stall_s`.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from tests.litmus.side_control import Progress, StopOrder, Violation, end_with_parent

STEP = 1 << 16


# -- single words ---------------------------------------------------------------------------


def words_writer(task: dict[str, Any]) -> dict[str, Any]:
    """Store two patterns alternately into words of every kind; halves: one of them in two parts."""
    from tests.litmus import segments

    segment, names = segments.words(task["fd"])
    stores = segments.stores(segment, halves=task["halves"])
    segments.rendezvous(segment, "writer", "reader")
    for i in range(4 * task["rounds"]):
        for store in stores:
            store(i & 1)
        if i > task["rounds"] and segments.is_flagged(segment, "reader is done"):
            break
    segments.flag(segment, "writer is done")
    return {"kinds": names}


def words_reader(task: dict[str, Any]) -> dict[str, Any]:
    """Check that every load gives one of the two patterns; count the changes."""
    from tests.litmus import segments

    segment, _ = segments.words(task["fd"])
    loads = segments.loads(segment)
    changes = dict.fromkeys(loads, 0)
    last = {name: load() for name, load in loads.items()}
    segments.rendezvous(segment, "reader", "writer")
    while not segments.is_flagged(segment, "writer is done"):
        for name, load in loads.items():
            value = load()
            if value not in (0, segments.ONES[name]):
                raise Violation(f"torn word: {name} reads as {value:#x}")
            changes[name] += value != last[name]
            last[name] = value
        if min(changes.values()) > 1000:
            segments.flag(segment, "reader is done")
    return {"changes": changes}


# -- rings of numbered entries --------------------------------------------------------------


def expected(first: int, n: int) -> Any:
    """The entries number first to first+n, all of whose bits depend on the number."""
    import numpy as np

    z = np.arange(first, first + n, dtype=np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


class Expected:
    """Expected entries, computed in blocks of STEP."""

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
    """Push `total` numbered entries, or entries until the order to stop, in random groups."""
    import random

    from batchpool.shm.ring import Producer
    from tests.litmus import segments

    producer = Producer(*segments.ring(task["fd"], task["capacity"], "writer", "reader"))
    rng = random.Random(task["seed"])
    entries, progress = Expected(), Progress(task["stall_s"])
    first, stop = task["start"], StopOrder(task["total"])
    sent = groups = 0
    while left := stop.remaining(sent):
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
    """Check that every entry comes once, whole and in order; advance by some or all of a peek."""
    import random

    from batchpool.shm.ring import Consumer
    from tests.litmus import segments

    consumer = Consumer(*segments.ring(task["fd"], task["capacity"], "reader", "writer"))
    rng = random.Random(task["seed"])
    entries, progress = Expected(), Progress(task["stall_s"])
    first, stop = task["start"], StopOrder(task["total"])
    received = peeks = 0
    while stop.remaining(received) or (stop.ordered and consumer.pending()):
        found = consumer.peek()
        n = len(found)
        if not n:
            progress.none()
            continue
        progress.made()
        peeks += 1
        want = entries(first + received, n)
        if not (found == want).all():
            at = int((found != want).argmax())
            raise Violation(f"entry {received + at} is {found[at]:#x}; {want[at]:#x} was published")
        n = n if rng.random() < 0.8 else rng.randint(1, n)
        consumer.advance(n)
        received += n
    if consumer.pending():
        raise Violation(f"{consumer.pending()} entries more than were sent")
    return {"received": received, "peeks": peeks}


# -- lanes ----------------------------------------------------------------------------------


def lane_client(task: dict[str, Any]) -> dict[str, Any]:
    from tests.litmus.echo_sides import EchoClient

    return EchoClient(task).run()


def lane_server(task: dict[str, Any]) -> dict[str, Any]:
    from tests.litmus.echo_sides import EchoServer

    return EchoServer(task).run()


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
    except Violation as broken:
        print(broken, file=sys.stderr)
        return 1
    print(json.dumps(counted))
    return 0


if __name__ == "__main__":
    sys.exit(main())
