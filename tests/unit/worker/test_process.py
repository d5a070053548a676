"""The worker's process: how it comes to serve, what it tells whom, and what it ends with."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest

from batchpool.control.channel import Closed, close_all, pair
from batchpool.control.edges import InvalidMessage
from batchpool.control.process_messages import (
    DropLane,
    StartWorker,
    WorkerFailed,
    WorkerReady,
)
from batchpool.core.errors import ModelError, Status
from batchpool.core.layout.segments import REFUSED_LANE
from batchpool.core.layout.states import BatchOutcome
from batchpool.core.metrics.segments import counters_layout
from batchpool.core.tensors.spec import ModelSpec, Tensor
from batchpool.model import Batch, Model, spec_of
from batchpool.process import bootstrap
from batchpool.shm.segment import create
from batchpool.worker.backends.cpu import NumpyBackend
from batchpool.worker.backends.select import BACKENDS, FrameworkBackend
from batchpool.worker.process import WorkerProcess, main
from tests.unit.worker.process_bench import LANES, MOST, PATIENCE_S, SERIAL, SLOTS, Pool


class Served(Model):
    """y = 2x + 1, and a record of what it was asked for; `raises` once the worker serves."""

    inputs: ClassVar = [Tensor("x", "float32", (2,))]
    outputs: ClassVar = [Tensor("y", "float32", (2,))]
    framework = "numpy"
    events: ClassVar[list[Any]] = []
    raises: ClassVar[BaseException | None] = None

    def load(self, device: str) -> None:
        self.events.append(("load", device))

    def infer(self, batch: Batch) -> Any:
        self.events.append(("infer", batch.n, batch.rows))
        if self.raises is not None:
            raise self.raises
        return {"y": batch["x"] * 2 + 1}


class Unloadable(Served):
    """Its weights are not there."""

    def load(self, device: str) -> None:
        raise FileNotFoundError("no weights")


@pytest.fixture(autouse=True)
def events(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    found: list[Any] = []
    monkeypatch.setattr(Served, "events", found)
    monkeypatch.setattr(bootstrap, "settle", lambda: found.append("settle"))
    return found


Start = Callable[..., Pool]


@pytest.fixture
def start() -> Iterator[Start]:
    made: list[Pool] = []

    def make(cls: type[Model] = Served, **options: Any) -> Pool:
        made.append(Pool(cls, **options))
        return made[-1]

    yield make
    for pool in made:
        pool.end()


def serving(pool: Pool) -> Pool:
    pool.start(WorkerProcess(pool.own))
    assert isinstance(pool.receive(), WorkerReady)
    pool.heard()
    return pool


# -- the start ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "warm"), [((), (1, 1, MOST, MOST)), ((2, 4), (2, 2, 4, 4))], ids=["any", "fixed"]
)
def test_a_worker_loads_and_warms_up_its_model_before_it_is_ready(
    start: Start, events: list[Any], sizes: tuple[int, ...], warm: tuple[int, ...]
) -> None:
    pool = start(sizes=sizes)
    process = WorkerProcess(pool.own)
    worker = process.load()
    wanted: list[Any] = [("load", "cpu"), *(("infer", n, n) for n in warm)]
    assert events == wanted
    assert pool.segment.ready.get() == 0
    assert worker.spec == pool.spec
    pool.own.sock.setblocking(False)
    pool.channel.close()
    with pytest.raises(Closed):
        process.run(worker)
    assert events == [*wanted, "settle"]


def test_a_worker_that_is_ready_says_so_to_all(
    start: Start, events: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = start()
    pool.add_lane(2)
    send, lanes = pool.own.send, []

    def noted(*args: Any) -> Any:
        lanes.extend(pool.segment.lanes.tolist())
        return send(*args)

    monkeypatch.setattr(pool.own, "send", noted)
    pool.start(WorkerProcess(pool.own))
    assert isinstance(pool.receive(), WorkerReady)
    assert pool.segment.ready.get() == 1
    assert events[-1] == "settle"
    assert lanes == [0, 0, SERIAL, 0, 0, 0, 0, 0], "it waited in the channel, and was there before"
    pool.heard()


def test_the_process_is_prepared_for_its_device_before_the_model_is_imported(
    start: Start, events: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """C61: before any import of CUDA."""
    entry = FrameworkBackend(
        lambda model, *rest: events.append(rest) or NumpyBackend(model),  # type: ignore[func-returns-value]
        lambda device: events.append(("prepare", device)),
    )
    monkeypatch.setitem(BACKENDS, "numpy", entry)
    pool = start(sizes=(2, 4))
    WorkerProcess(pool.own).load()
    assert events[:3] == [("prepare", "cpu"), ("load", "cpu"), (pool.spec, "cpu", MOST, (2, 4), 0)]


def test_code_that_has_changed_under_the_pool_is_not_loaded(
    start: Start, events: list[Any]
) -> None:
    other = ModelSpec("m", "numpy", spec_of(Served).inputs, (Tensor("y", "float32", (3,)),))
    pool = start(spec=other)
    with pytest.raises(ModelError, match="declares other tensors"):
        WorkerProcess(pool.own).load()
    assert events == []


def test_a_worker_starts_with_the_message_start(start: Start) -> None:
    channel, own = pair()
    channel.send(DropLane(1))
    with pytest.raises(InvalidMessage, match="starts with 'start', not with DropLane"):
        WorkerProcess(own)
    for end in (channel, own):
        end.close()


# -- serving --------------------------------------------------------------------------------------


def test_batches_of_a_lane_are_run_until_it_is_dropped(start: Start) -> None:
    pool = serving(start())
    lane = pool.add_lane(2)
    pool.heard()
    assert pool.segment.lanes[2] == SERIAL
    for i in range(40):  # more than between two looks at the channel
        lane.inputs["x"].values[1] = i
        batch = pool.send(2, 1)
        assert pool.finished() == [batch]
        assert pool.segment.outcome[batch.record] == BatchOutcome.OK
        assert lane.outputs["y"].values[1].tolist() == [2 * i + 1] * 2
    pool.channel.send(DropLane(2))
    last = pool.add_lane(3)
    pool.acknowledged(3)
    assert pool.segment.lanes.tolist() == [0, 0, 0, SERIAL, 0, 0, 0, 0]
    last.inputs["x"].values[0] = 1
    pool.send(3, 0)
    pool.finished()
    assert last.outputs["y"].values[0].tolist() == [3, 3]


def test_batches_are_padded_to_the_sizes_that_the_model_accepts(
    start: Start, events: list[Any]
) -> None:
    pool = serving(start(sizes=(2, 4)))
    pool.add_lane(2)
    pool.heard()
    events.clear()
    pool.send(2, 0, 1, 5)
    pool.finished()
    assert events == [("infer", 4, 3)]


def test_a_lane_whose_head_was_overwritten_ends_no_other(start: Start) -> None:
    pool = serving(start())
    pool.add_lane(1, slots=SLOTS + 1)
    pool.add_lane(2)
    pool.heard()
    assert pool.segment.lanes.tolist() == [0, REFUSED_LANE, SERIAL, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("row", [0, 3])
def test_a_worker_counts_in_its_own_row(start: Start, row: int) -> None:
    pool = start(row=row)
    for slot in (0, 3):
        pool.counters.label_worker_slot(slot, "m", slot, "cpu")
        pool.counters.held[slot] = 1
    serving(pool)
    pool.add_lane(2)
    pool.heard()
    pool.send(2, 0, 1)
    pool.finished()
    pool.send(2, 4)
    pool.finished()
    totals = pool.counters.totals()
    counted = {n: totals.value("worker_rows_total", worker=str(n)) for n in (0, 3)}
    assert counted == {0: 0, 3: 0} | {row: 3}


def test_an_error_says_which_worker_failed(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = serving(start())
    lane = pool.add_lane(2)
    pool.heard()
    monkeypatch.setattr(Served, "raises", ValueError("no"))
    batch = pool.send(2, 1)
    pool.finished()
    assert (lane.status[1], lane.read_message(1)) == (Status.MODEL_ERROR, "ValueError: no")
    assert lane.read_origin(1) == (batch.token, 3, os.getpid())


def test_the_traceback_of_an_error_is_kept_where_there_are_tasks(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = serving(start(row=5, tracebacks=True))
    lane = pool.add_lane(2)
    pool.heard()
    monkeypatch.setattr(Served, "raises", ValueError("no"))
    batch = pool.send(2, 1)
    pool.finished()
    token, _, pid = lane.read_origin(1) or (0, 0, 0)
    text = pool.tracebacks.find(pid, token, "")
    assert token == batch.token
    assert ", in infer\n" in text
    assert text.endswith("ValueError: no\n")


def test_a_second_start_is_refused(start: Start) -> None:
    pool = serving(start())
    fds = [create(counters_layout(1), sealed=True) for _ in range(4)]
    message = StartWorker(0, "a:b", {}, pool.spec.to_wire(), "cpu", MOST, (), LANES, 1, -1)
    pool.channel.send(message, fds)
    close_all(fds)
    assert pool.thread is not None
    pool.thread.join(PATIENCE_S)
    assert [str(exc) for exc in pool.ends] == ["'start' came twice"]


# -- the end --------------------------------------------------------------------------------------


@pytest.fixture
def run_main(monkeypatch: pytest.MonkeyPatch, start: Start) -> Callable[..., tuple[int, Pool]]:
    """Runs `main` for a model, in this process, whose signals and log stay as they are."""

    def run(cls: type[Model] = Served, before: Callable[[Pool], None] = lambda pool: None) -> Any:
        pool = start(cls)
        before(pool)
        monkeypatch.setattr(bootstrap, "start", lambda parent: None)
        monkeypatch.setattr(bootstrap, "outlast_sigterm", lambda: None)
        monkeypatch.setattr(bootstrap, "log_to_stderr", lambda role, args: None)
        monkeypatch.setattr(bootstrap, "control_channel", lambda fd: pool.own)
        return main(["--control-fd", "0", "--parent", "1"]), pool

    return run


def test_a_model_that_cannot_be_loaded_ends_the_worker_with_its_place_in_the_code(
    run_main: Callable[..., tuple[int, Pool]],
) -> None:
    status, pool = run_main(Unloadable)
    assert status == bootstrap.EXIT_LOAD_FAILED
    line = Unloadable.load.__code__.co_firstlineno + 1
    text = f"FileNotFoundError: no weights ({__file__}:{line})"
    assert pool.receive() == WorkerFailed(text)
    assert pool.segment.ready.get() == 0


def test_a_worker_whose_supervisor_is_gone_ends_well(
    run_main: Callable[..., tuple[int, Pool]], events: list[Any]
) -> None:
    status, _ = run_main(before=lambda pool: pool.channel.close())
    assert status == 0
    assert events[-1] == "settle"


def test_a_worker_with_a_broken_device_asks_for_another(
    run_main: Callable[..., tuple[int, Pool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def send(pool: Pool) -> None:
        pool.add_lane(2)
        pool.send(2, 1)

    def settle() -> None:
        monkeypatch.setattr(Served, "raises", RuntimeError("CUDA error: device-side assert"))

    monkeypatch.setattr(bootstrap, "settle", settle)
    status, pool = run_main(before=send)
    assert status == bootstrap.EXIT_MUST_RESTART
    assert isinstance(pool.receive(), WorkerReady)
    failed = pool.receive()
    assert isinstance(failed, WorkerFailed)
    assert failed.error.startswith("the device is broken: RuntimeError: CUDA error")
    assert pool.segment.batches.get() == 0, "its rows run again elsewhere"


def test_a_model_that_fails_for_its_warm_up_row_too_asks_for_another_worker(
    run_main: Callable[..., tuple[int, Pool]], events: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def send(pool: Pool) -> None:
        pool.add_lane(2)
        for slot in (1, 2):
            pool.send(2, slot)

    def settle() -> None:
        events.clear()
        monkeypatch.setattr(Served, "raises", ValueError("no"))

    monkeypatch.setattr(bootstrap, "settle", settle)
    status, pool = run_main(before=send)
    assert status == bootstrap.EXIT_MUST_RESTART
    assert events == [("infer", 1, 1)] * 3, "two batches, and the warm-up row once"
    assert pool.segment.batches.get() == 1
