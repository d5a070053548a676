"""The client and the server of an echo lane: rows with checksums there and back, by the real code.

The server is batcher and worker in one. With the probability `crashes` a step of it leaves what
a batcher's death leaves: a head that was not moved, a DONE without its entry. With `strays` it
also publishes completions of uses that are over.
"""

from __future__ import annotations

import random
import time
import zlib
from typing import Any

import numpy as np

from batchpool.batcher.lane import AdmittedLane
from batchpool.client.arena_lane_client import lane_client_of
from batchpool.client.pending_request import PendingRequest
from batchpool.core.errors import Status, TooLarge
from batchpool.core.layout.admission import bound_of
from batchpool.core.layout.states import LaneGate, SlotState
from batchpool.core.scheduler.queue import I64, QueueColumn
from batchpool.core.tensors.dtypes import Array
from batchpool.core.tensors.rows import Rows, check_rows
from batchpool.core.tensors.stages import Stage
from batchpool.shm.doorbell import Doorbell, Waiter
from batchpool.shm.lane import Lane
from batchpool.shm.ring import Consumer
from batchpool.shm.segment import map_checked
from tests.litmus.segments import TEXT_BYTES, echo_layout, echo_spec
from tests.litmus.side_control import PATIENT_S, Progress, StopOrder, Violation

FAR_NS = 2**62


def crc_of(x: Array, text: bytes) -> int:
    return zlib.crc32(text, zlib.crc32(np.ascontiguousarray(x).data))


def _lane(task: dict[str, Any]) -> Lane:
    spec = echo_spec(task["size"])
    layout = echo_layout(task["size"], task["slots"], task["arena_rows"])
    return Lane(spec, map_checked(task["fd"], layout), layout)


class EchoClient:
    """Sends `total` rows, or rows until the order to stop, in requests of random sizes."""

    def __init__(self, task: dict[str, Any]) -> None:
        self.task = task
        self.lane_client = lane_client_of(_lane(task))
        self.size = task["size"]
        self.rng = random.Random(task["seed"])
        self.bell, self.server = Doorbell(task["client_bell"]), Doorbell(task["server_bell"])
        self.waiter = Waiter(self.bell.fd)
        self.noise = np.frombuffer(
            np.random.default_rng(task["seed"]).bytes(2 * self.size + 4096), np.uint8
        )
        self.sent = self.answered = self.requests = 0
        self.stop = StopOrder(task["total"])

    def run(self) -> dict[str, Any]:
        self.too_large()
        progress = Progress(PATIENT_S)
        while not self.lane_client.lane.generation.get():  # the server has not started yet
            progress.none()
        while self.stop.remaining(self.sent) or self.answered < self.sent:
            moved = self.send()
            self.bell.clear()
            for pending in self.lane_client.reap(time.monotonic_ns()):
                self.take(pending)
                moved = True
            if self.lane_client.stale and not (self.task["strays"] or self.taken_over()):
                raise Violation("a completion was not for any row under way")
            if not moved and self.answered < self.sent:
                self.wait()
            elif not moved:  # the arena keeps room for rows that do not come again here
                time.sleep(0.005)
        if self.lane_client.allocator.claimed or self.lane_client.lane.claimed.get():
            raise Violation(f"{self.lane_client.allocator.claimed} slots are still claimed")
        return {
            "sent": self.sent,
            "answered": self.answered,
            "requests": self.requests,
            "stale": self.lane_client.stale,
        }

    def taken_over(self) -> bool:
        """True after a takeover: a completion may follow of a row that was found DONE before."""
        return self.lane_client.lane.generation.get() > 1

    def wait(self) -> None:
        """Wait for the server's bell; raises Violation if it does not ring in time."""
        stall_ms = self.task["stall_s"] * 1000
        if not self.waiter.wait_ms(stall_ms):
            left = self.sent - self.answered
            raise Violation(f"nobody rang for {stall_ms:g} ms; {left} rows are under way")

    def too_large(self) -> None:
        """A row with one byte more than a slot holds is refused and claims nothing."""
        try:
            check_rows(self.lane_client.spec, self.rows([self.size + 1])[0])
        except TooLarge:
            return
        raise Violation("a row larger than its slot was taken")

    def row_size(self) -> int:
        edge = self.rng.choice((0, 1, self.size - 1, self.size, -1, -1, -1))
        return edge if edge >= 0 else self.rng.randint(0, self.size)

    def rows(self, sizes: list[int]) -> tuple[dict[str, Any], list[int]]:
        starts = [self.rng.randrange(len(self.noise) - size) for size in sizes]
        x = np.stack([self.noise[at : at + size] for at, size in zip(starts, sizes, strict=True)])
        texts = [self.rng.randbytes(self.rng.randint(0, TEXT_BYTES)) for _ in sizes]
        crcs = [crc_of(row, text) for row, text in zip(x, texts, strict=True)]
        return {"x": x, "text": texts, "crc": np.array(crcs, dtype=np.uint32)}, crcs

    def send(self) -> bool:
        before = self.sent
        while left := self.stop.remaining(self.sent):
            n = min(self.rng.choice((1, 1, 1, 2, 4)), left, self.lane_client.allocator.bound)
            if not self.lane_client.may_claim(n):
                break
            tensors, crcs = self.rows([self.row_size()] * n)
            rows: Rows = check_rows(self.lane_client.spec, tensors, {"first": crcs[0]})
            if not self.lane_client.has_room(rows, time.monotonic_ns()):
                break
            self.lane_client.submit(rows, time.monotonic_ns(), FAR_NS + crcs[0], tag=(rows, crcs))
            self.sent += n
            self.requests += 1
            if self.rng.random() < 0.3:
                break
        self.lane_client.flush()
        if self.sent > before:
            self.server.ring()
        return self.sent > before

    def take(self, pending: PendingRequest) -> None:
        rows, crcs = pending.tag
        found = self.lane_client.result(pending)
        if found["crc"].tolist() != crcs:
            raise Violation(f"answers {found['crc'].tolist()} to rows {crcs}")
        if not np.array_equal(found["x"], rows.tensors["x"]):
            raise Violation("an answer's payload is not its request's")
        if found["text"].tolist() != rows.tensors["text"].tolist():
            raise Violation("an answer's text is not its request's")
        self.answered += pending.n


class EchoServer:
    """Echoes rows until `total` are done, or until the order to stop."""

    def __init__(self, task: dict[str, Any]) -> None:
        self.task = task
        self.rng = random.Random(task["seed"] + 1)
        self.bell, self.client = Doorbell(task["server_bell"]), Doorbell(task["client_bell"])
        self.waiter = Waiter(self.bell.fd)
        self.last: dict[int, int] = {}
        self.echoed = self.crashes = 0
        self.stop = StopOrder(task["total"])
        self.open(_lane(task))

    def open(self, lane: Lane) -> None:
        """Take over the lane as a new batcher does, with its QUEUED rows."""
        self.lane = lane
        self.side = AdmittedLane(0, 1, 0, lane, self.client.ring)
        self.waiting: list[tuple[int, int]] = []
        self.admitted(self.side.queued_rows(Stage.INFER), again=True)
        lane.generation.set(lane.generation.get() + 1)
        self.side.set_gate(LaneGate.OPEN)
        self.client.ring()

    def run(self) -> dict[str, Any]:
        while self.stop.remaining(self.echoed):
            self.bell.clear()
            if self.rng.random() < self.task["crashes"]:
                self.crash()
            self.admitted(self.side.admit())
            if self.side.broken:
                raise Violation("the lane was closed as broken")
            if self.waiting:
                self.complete()
            elif self.stop.remaining(self.echoed):
                self.wait()
        stale = self.lane.stale.get()
        return {"echoed": self.echoed, "crashes": self.crashes, "stale": stale}

    def wait(self) -> None:
        """Wait for the client's bell, polling its ring: it may be stopped before it rings."""
        stall_s = self.task["stall_s"] if self.last else PATIENT_S
        until = time.monotonic() + stall_s
        while not self.waiter.wait_ms(50) and not self.lane.sq_consumer().pending():
            if self.stop.ordered:
                return
            if time.monotonic() > until:
                raise Violation(f"nobody rang for {stall_s:g} s; {self.echoed} rows are echoed")

    def admitted(self, rows: I64, *, again: bool = False) -> None:
        """Check each row against its checksum and against the earlier uses of its slot."""
        for i in range(rows.shape[1]):
            slot, use = int(rows[QueueColumn.SLOT, i]), int(rows[QueueColumn.SEQUENCE, i])
            if not again and use <= self.last.get(slot, 0):
                raise Violation(f"use {use} of slot {slot} was admitted after {self.last[slot]}")
            self.last[slot] = use
            where = slice(slot, slot + 1)
            first = int(self.lane.parameters["first"].load(where)[0])
            if rows[QueueColumn.DEADLINE_NS, i] != FAR_NS + first:
                raise Violation(f"slot {slot} has the deadline of another request")
            crc = int(self.lane.inputs["crc"].load(where)[0])
            if crc != crc_of(self.x(where), self.lane.inputs["text"].load(where)[0]):
                raise Violation(f"the payload of slot {slot} does not match its checksum")
            self.waiting.append((slot, use))

    def x(self, where: slice) -> Array:
        values: Array = self.lane.inputs["x"].load(where)[0]
        return values

    def complete(self) -> None:
        """Complete some of the waiting rows, in any order, as one group."""
        self.rng.shuffle(self.waiting)
        n = self.rng.randint(1, len(self.waiting))
        group, self.waiting = self.waiting[:n], self.waiting[n:]
        slots = self.echo(group)
        self.side.complete(slots, np.array([use for _, use in group]))
        ring = self.side._cq
        if self.task["strays"] and self.waiting and ring.room() > self.lane.slots:
            slot, use = self.waiting[0]
            ring.push_few([slot | (use - 1) << 32])

    def echo(self, group: list[tuple[int, int]]) -> Array:
        for slot, _ in group:
            where = slice(slot, slot + 1)
            for name, column in self.lane.outputs.items():
                column.store(where, self.lane.inputs[name].load(where))
        slots = np.array([slot for slot, _ in group])
        self.lane.write_status(slots, Status.OK)
        self.echoed += len(group)
        return slots

    def crash(self) -> None:
        """Leave the lane as a death leaves it, then take over."""
        self.crashes += 1
        self.side._sq = Unmoved(self.side._sq)  # type: ignore[assignment]
        self.admitted(self.side.admit())
        if self.waiting:
            group, self.waiting = self.waiting[:1], self.waiting[1:]
            self.lane.state[self.echo(group)] = SlotState.DONE  # and no entry for it
        self.open(self.lane)
        # Let the client use some of those slots again, as many as its ring has room for,
        # while the entries of their former uses still wait.
        spare = self.lane.layout.capacity - bound_of(self.lane.slots, 0.90) - 1
        if self.waiting and spare > 0:
            group, self.waiting = self.waiting[:spare], self.waiting[spare:]
            slots = self.echo(group)
            self.side.complete(slots, np.array([use for _, use in group]))
            while self.waiter.wait_ms(5):  # until the client has sent what it can
                self.bell.clear()


class Unmoved:
    """A consumer that never moves its head, as if its process had died before that."""

    def __init__(self, consumer: Consumer) -> None:
        self.peek = consumer.peek

    def advance(self, n: int) -> None:
        """Does nothing."""
