"""A batcher, real workers, clients that check every answer, and a hand that overwrites a segment.

The house plays the supervisor: a worker that its batcher holds for broken, that ends by itself, or
that has work and does nothing is lost, and another one with a new segment takes its place.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from batchpool.batcher.batcher import Batcher
from batchpool.batcher.lane import AdmittedLane
from batchpool.batcher.metrics import BatcherMetrics
from batchpool.batcher.model_queue import ModelQueue
from batchpool.batcher.recovery import take_over
from batchpool.batcher.worker_proxy import WorkerProxy
from batchpool.client.lane_client import LaneClient
from batchpool.client.pending_request import PendingRequest
from batchpool.core.layout.segments import Layout, worker_layout
from batchpool.core.layout.states import LaneGate
from batchpool.core.metrics.table import BLOCKS
from batchpool.core.scheduler.decide import Limits
from batchpool.core.tensors.rows import check_rows
from batchpool.shm.segment import Segment, create, map_checked
from batchpool.shm.stats.flight_recorder import FlightRecorder
from batchpool.shm.worker_segment import WorkerSegment
from batchpool.worker.backends.cpu import CpuBackend
from batchpool.worker.worker import Worker
from tests.unit.client.lane_clients import MS, NOW, new_lane_client
from tests.unit.lanes import other_side
from tests.unit.specs import AFFINE

MOST, LANES, SLOTS = 4, 4, 64
HOUR_NS = 3600 * 10**9
VICTIM, OTHER = 0, 1  # the models


class Affine(CpuBackend):
    """y = 2x + 1."""

    def launch(self, n: int, inputs: Any, sizes: Any, views: bool, parts: Any = ()) -> Any:
        return {"y": inputs["x"] * 2 + 1}

    def finish(self, handle: Any) -> Any:
        return handle


class Seat:
    """One worker with its segment. raw: the segment's bytes, as a wild pointer sees them."""

    def __init__(self, house: House, number: int, model: int) -> None:
        self.number, self.model = number, model
        self.layout = worker_layout(MOST, LANES)
        self.fd = create(self.layout, sealed=True)
        self.memory = map_checked(self.fd, self.layout)
        self.raw = memoryview(self.memory.map)
        self.segment = WorkerSegment(self.memory, self.layout)
        backend = Affine()
        self.worker = Worker(AFFINE, self.segment, backend, lambda: None, lambda: house.now_ns)
        client = house.clients[model]
        self.worker.add_lane(model, 10 + model, other_side(client.lane))
        self.segment.ready.set(1)
        self.ended = False

    def step(self) -> None:
        """One step of its process, which ends where that raises."""
        if not self.ended:
            try:
                self.worker.step()
            except Exception:
                self.ended = True

    def map(self) -> tuple[Segment, str]:
        """The segment as a batcher maps it, or zeros and the reason; as `BatcherProcess` does."""
        try:
            return map_checked(self.fd, self.layout), ""
        except ValueError as exc:
            return Segment.blank(self.layout.total_bytes), str(exc)


class House:
    """Two models with a lane each. broken: what the batchers have reported, {worker: damage}."""

    def __init__(self, workers: int = 2) -> None:
        self.now_ns = NOW
        self.broken: dict[int, str] = {}
        self.replaced: list[int] = []
        self.clients: dict[int, LaneClient] = {
            model: new_lane_client(SLOTS, LaneGate.CLOSED) for model in (VICTIM, OTHER)
        }
        self.sent: dict[int, list[tuple[PendingRequest, float]]] = {VICTIM: [], OTHER: []}
        self.seats: dict[int, Seat] = {}
        self._numbers, self._rows = 0, 0
        self._recorder = FlightRecorder()
        self.metrics = [
            BatcherMetrics(memoryview(bytearray(8 * BLOCKS["batcher"].size)).cast("Q"))
            for _ in (VICTIM, OTHER)
        ]
        self.batcher = self._new_batcher()
        for model, n in ((VICTIM, workers), (OTHER, 1)):
            for _ in range(n):
                self._hire(model)

    def _new_batcher(self) -> Batcher:
        limits = Limits(MOST, 0)
        models = [
            ModelQueue(f"m{i}", limits, attempts=99, idempotent=True, metrics=metrics)
            for i, metrics in enumerate(self.metrics)
        ]
        batcher = Batcher(models, LANES, flight_recorder=self._recorder)
        for model, client in self.clients.items():
            lane = other_side(client.lane)
            batcher.add_lane(
                AdmittedLane(model, 10 + model, model, lane, lambda: None, own_flow=False)
            )
        return batcher

    def _hire(self, model: int) -> None:
        self._numbers += 1
        seat = self.seats[self._numbers] = Seat(self, self._numbers, model)
        self._introduce(self.batcher, seat)

    def _introduce(self, batcher: Batcher, seat: Seat) -> None:
        memory, damage = seat.map()
        proxy = WorkerProxy(
            seat.number, seat.model, WorkerSegment(memory, seat.layout), lambda: None,
            mapped_ns=self.now_ns, report_damage=self._report,
        )  # fmt: skip
        if damage:
            proxy.mark_broken(damage)
        batcher.add_worker(proxy)

    def _report(self, number: int, damage: str, useful: bool) -> None:
        assert damage
        self.broken[number] = damage

    def take_over(self) -> None:
        """The batcher dies, and another one takes over."""
        self.batcher = self._new_batcher()
        for seat in self.seats.values():
            self._introduce(self.batcher, seat)
        take_over(self.batcher)

    def replace(self, number: int) -> None:
        """A worker was killed and reaped; another one comes."""
        seat = self.seats.pop(number)
        self.batcher.lose_worker(number, "was killed")
        os.close(seat.fd)
        self.replaced.append(number)
        self._hire(seat.model)

    def send(self, model: int, n: int) -> None:
        for _ in range(n):
            self._rows += 1
            x = float(self._rows)
            rows = check_rows(AFFINE, {"x": np.full((1, 4), x, np.float32)}, {})
            pending = self.clients[model].submit(rows, self.now_ns, self.now_ns + HOUR_NS)
            self.sent[model].append((pending, x))
        self.clients[model].flush()

    def step(self) -> None:
        """A step of everybody, then what the supervisor does."""
        self.now_ns += MS
        self.batcher.step(self.now_ns)
        for seat in self.seats.values():
            seat.step()
        for number, seat in list(self.seats.items()):
            if seat.ended or number in self.broken:
                self.replace(number)
        for model, client in self.clients.items():
            for pending in client.reap(self.now_ns):
                (x,) = (x for sent, x in self.sent[model] if sent is pending)
                right = np.full((1, 4), 2 * x + 1, np.float32)
                np.testing.assert_array_equal(client.result(pending, copy=True)["y"], right)
                self.sent[model].remove((pending, x))

    def settle(self) -> None:
        """Until every row is answered. A worker with rows that nothing happens to is killed, as
        the watchdog does."""
        for _ in range(30):
            for _ in range(40):
                self.step()
                if not any(self.sent.values()):
                    return
            for number, seat in list(self.seats.items()):
                if seat.model == VICTIM:
                    self.replace(number)
        raise AssertionError(f"left: {self.sent}, broken: {self.broken}")

    def close(self) -> None:
        for seat in self.seats.values():
            os.close(seat.fd)


def places(layout: Layout) -> list[tuple[str, int, int]]:
    """(name, offset, bytes) of each word and of each element of each column, and of the head."""
    found = [("head", at, 8) for at in range(0, 56, 8)]
    found += [(name, at, 8) for name, at in layout.words.items()]
    for column in layout.columns.values():
        size = int(column.dtype[1:])
        found += [(column.name, column.offset + at, size) for at in range(0, column.nbytes, size)]
    return found
