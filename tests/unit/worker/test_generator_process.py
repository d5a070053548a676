"""The process of a generator's worker: its lanes with their clients' bells, and its messages."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from batchpool.batcher.dispatched_batch import DispatchedBatch
from batchpool.control.edges import InvalidMessage
from batchpool.control.process_messages import (
    AddWorkerLane,
    DropLane,
    EndSequences,
    ReturnSequences,
    WorkerReady,
)
from batchpool.core.errors import Status
from batchpool.core.layout.segments import lane_layout
from batchpool.core.layout.states import BatchOutcome, DispatchReason
from batchpool.core.scheduler.limits import NEVER_NS
from batchpool.core.scheduler.queue import QueueColumn
from batchpool.process import bootstrap
from batchpool.shm.doorbell import Doorbell, Waiter
from batchpool.shm.lane import Lane
from batchpool.shm.segment import create, map_checked
from batchpool.worker.process import WorkerProcess
from tests.unit.core.scheduler.queued import rows_of
from tests.unit.worker.process_bench import MOST, PATIENCE_S, SERIAL, SLOTS, Pool
from tests.unit.worker.test_process import Served
from tests.unit.worker.toy_generator import TOKENS_MOST, Toy, tokens_of

WARM_UP = ("load", "join", "leave", "join", "leave")


class Slow(Toy):
    """Makes its tokens when a test lets it, once it is warm."""

    gate = Doorbell()

    def step(self) -> Any:
        if len(self.log) > len(WARM_UP):
            assert Waiter(self.gate.fd).wait_ms(1000 * PATIENCE_S)
            self.gate.clear()
        return super().step()


class GeneratorPool(Pool):
    """A pool of a generator. clients: the bells of the lanes' clients."""

    def __init__(self, cls: type[Toy]) -> None:
        super().__init__(cls)
        self.clients: dict[int, Doorbell] = {}

    def add_lane(self, number: int, slots: int = SLOTS) -> Lane:
        layout = lane_layout(self.spec, slots)
        fd = create(layout, sealed=True)
        self.lanes[number] = Lane(self.spec, map_checked(fd, layout), layout)
        bell = self.clients[number] = Doorbell()
        message = AddWorkerLane(number, SERIAL, slots, pinned=False, rings=True)
        self.channel.send(message, [fd, bell.fd])
        os.close(fd)
        self.acknowledged(number)
        return self.lanes[number]

    def generate(self, number: int, slot: int, prompt: list[int], most: int) -> DispatchedBatch:
        lane = self.lanes[number]
        lane.inputs["prompt"].store(slice(slot, slot + 1), np.array([prompt], np.int32))
        lane.parameters["max_tokens"].values[slot] = most
        lane.sequence[slot] = 1
        rows = rows_of(1, lane=number)
        rows[QueueColumn.SLOT], rows[QueueColumn.SEQUENCE] = slot, 1
        rows[QueueColumn.DEADLINE_NS] = NEVER_NS
        tokens = len(prompt) + most
        batch = self.proxy.prepare(rows, DispatchReason.FULL, 1, 1, tokens=tokens)
        self.proxy.publish(batch)
        return batch

    def outcome(self, batch: DispatchedBatch) -> BatchOutcome:
        assert self.finished() == [batch]
        return BatchOutcome(self.segment.outcome_of[batch.record])


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Any]:
    monkeypatch.setattr(bootstrap, "settle", lambda: None)
    made = GeneratorPool(getattr(request, "param", Toy))
    made.start(WorkerProcess(made.own))
    assert isinstance(made.receive(), WorkerReady)
    yield made
    made.end()
    for bell in made.clients.values():
        bell.close()


def test_a_generator_is_served(pool: GeneratorPool) -> None:
    assert (pool.segment.sequences.get(), pool.segment.kv_tokens.get()) == (MOST, 0)
    lane = pool.add_lane(2)
    assert pool.outcome(pool.generate(2, 5, [1, 2], 7)) is BatchOutcome.OK
    assert lane.outputs["token"].values[5, :7].tolist() == tokens_of([1, 2], 7)
    assert Waiter(pool.clients[2].fd).wait_ms(0), "its client was rung by the worker"
    pool.channel.send(DropLane(2))
    pool.add_lane(3)
    assert pool.segment.lanes[2] == 0


@pytest.mark.parametrize("pool", [Slow], indirect=True)
def test_messages_reach_a_worker_whose_sequences_run(pool: GeneratorPool) -> None:
    first, second = pool.add_lane(1), pool.add_lane(2)
    gone = pool.generate(1, 0, [1], TOKENS_MOST)
    pool.channel.send(EndSequences(1))
    Slow.gate.ring()
    assert pool.outcome(gone) is BatchOutcome.OK
    assert first.status[0] == Status.CANCELLED
    returned = pool.generate(2, 0, [2], TOKENS_MOST)
    pool.channel.send(ReturnSequences())
    Slow.gate.ring()
    assert pool.outcome(returned) is BatchOutcome.RETURNED
    made = int(second.outputs["token"].sizes[0, 0])
    assert second.outputs["token"].values[0, :made].tolist() == tokens_of([2], made)


def test_a_worker_of_batches_has_no_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap, "settle", lambda: None)
    pool = Pool(Served)
    pool.start(WorkerProcess(pool.own))
    assert isinstance(pool.receive(), WorkerReady)
    pool.channel.send(EndSequences(1))
    assert pool.thread is not None
    pool.thread.join(PATIENCE_S)
    assert [type(end) for end in pool.ends] == [InvalidMessage]
    pool.end()
