"""The end of a worker's process: the last batch, then the model's unload, whatever that does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest

from batchpool.control.process_messages import EndWorker, WorkerFailed, WorkerReady
from batchpool.core.tensors.spec import Tensor
from batchpool.model import Batch, Model
from batchpool.process import bootstrap
from batchpool.worker.device_errors import MustRestart
from batchpool.worker.process import WorkerProcess, main
from tests.unit.worker.process_bench import PATIENCE_S, Pool


class Closing(Model):
    """A model that keeps what is asked of it. at_unload: raised there. bad: raised by infer."""

    inputs: ClassVar = [Tensor("x", "float32", (2,))]
    outputs: ClassVar = [Tensor("y", "float32", (2,))]
    framework = "numpy"
    events: ClassVar[list[Any]] = []
    at_unload: ClassVar[BaseException | None] = None
    bad: ClassVar[BaseException | None] = None

    def load(self, device: str) -> None:
        self.events.append("load")

    def infer(self, batch: Batch) -> Any:
        if self.bad is not None:
            raise self.bad
        self.events.append(f"{batch.n} rows")
        return {"y": batch["x"]}

    def unload(self) -> None:
        self.events.append("unload")
        if self.at_unload is not None:
            raise self.at_unload


class Unloadable(Closing):
    """Nothing was loaded, so nothing is unloaded."""

    def load(self, device: str) -> None:
        raise FileNotFoundError("no weights")


@pytest.fixture(autouse=True)
def events(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    found: list[Any] = []
    monkeypatch.setattr(Closing, "events", found)
    monkeypatch.setattr(bootstrap, "settle", found.clear)
    return found


Start = Callable[..., Pool]


@pytest.fixture
def start() -> Iterator[Start]:
    made: list[Pool] = []

    def make(cls: type[Model] = Closing) -> Pool:
        made.append(Pool(cls))
        return made[-1]

    yield make
    for pool in made:
        pool.end()


@pytest.fixture
def run_main(monkeypatch: pytest.MonkeyPatch, start: Start) -> Callable[..., tuple[int, Pool]]:
    """Runs `main` for a model that is told to end at once, in this process."""

    def run(cls: type[Model] = Closing) -> tuple[int, Pool]:
        pool = start(cls)
        pool.channel.send(EndWorker())
        for name in ("start", "outlast_sigterm", "print_by_lines", "log_to_stderr"):
            monkeypatch.setattr(bootstrap, name, lambda *args: None)
        monkeypatch.setattr(bootstrap, "control_channel", lambda fd: pool.own)
        return main(["--control-fd", "0", "--parent", "1"]), pool

    return run


def test_a_worker_that_is_to_end_answers_its_batches_first(start: Start, events: list[Any]) -> None:
    pool = start()
    process = WorkerProcess(pool.own)
    pool.add_lane(0)
    pool.send(0, 1, 2)
    pool.send(0, 3)
    pool.channel.send(EndWorker())
    pool.start(process)
    assert pool.thread is not None
    pool.thread.join(PATIENCE_S)
    assert not pool.thread.is_alive()
    assert (pool.ends, events) == ([], ["2 rows", "1 rows"])
    assert len(pool.proxy.finished()) == 2


def test_a_worker_without_work_hears_that_it_is_to_end(start: Start) -> None:
    pool = start()
    pool.start(WorkerProcess(pool.own))
    assert isinstance(pool.receive(), WorkerReady)
    pool.channel.send(EndWorker())
    assert pool.thread is not None
    pool.thread.join(PATIENCE_S)
    assert not pool.thread.is_alive()
    assert pool.ends == []


def test_a_model_is_unloaded_once(start: Start, events: list[Any]) -> None:
    process = WorkerProcess(start().own)
    process.unload()
    assert events == []
    process.load()
    events.clear()
    process.unload()
    process.unload()
    assert events == ["unload"]


def test_the_end_of_a_worker_is_good(
    run_main: Callable[..., tuple[int, Pool]], events: list[Any]
) -> None:
    status, _ = run_main()
    assert (status, events) == (0, ["unload"])


@pytest.mark.parametrize("error", [RuntimeError("no"), SystemExit(9), KeyboardInterrupt()])
def test_an_error_in_unload_changes_nothing(
    run_main: Callable[..., tuple[int, Pool]],
    events: list[Any],
    error: BaseException,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(Closing, "at_unload", error)
    status, _ = run_main()
    assert (status, events) == (0, ["unload"])
    (record,) = caplog.records
    assert record.getMessage().startswith("unload of the model failed")
    assert record.exc_info is not None
    assert record.exc_info[1] is error


@pytest.mark.parametrize(
    ("cls", "wanted"), [(Closing, ["load", "unload"]), (Unloadable, [])], ids=["warm-up", "load"]
)
def test_a_model_that_fails_before_it_serves_is_unloaded_if_it_was_loaded(
    run_main: Callable[..., tuple[int, Pool]],
    events: list[Any],
    cls: type[Model],
    wanted: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Closing, "bad", ValueError("not even this one"))
    status, pool = run_main(cls)
    assert (status, events) == (bootstrap.EXIT_LOAD_FAILED, wanted)
    assert isinstance(pool.receive(), WorkerFailed), "the reason is told before the unload"


def test_a_worker_with_a_broken_device_unloads_nothing(
    run_main: Callable[..., tuple[int, Pool]], events: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def serve(process: WorkerProcess, worker: Any) -> None:
        raise MustRestart("the device is broken")

    monkeypatch.setattr(WorkerProcess, "run", serve)
    status, _ = run_main()
    assert (status, "unload" in events) == (bootstrap.EXIT_MUST_RESTART, False)
