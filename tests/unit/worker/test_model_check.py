"""Failed batches restart a worker only where its model fails for the warm-up row as well."""

from __future__ import annotations

from typing import Any

import pytest

from batchpool.core.errors import InvalidInput
from batchpool.worker.device_errors import MustRestart
from tests.unit.worker.worker_bench import Bench, affine

S = 10**9


class Broken:
    """A model that fails for every row; the warm-up row runs while `works`.

    seen: at each check, the launched batches that are not finished and the progress words.
    """

    def __init__(self, *, works: bool, depth: int = 1, takes_ns: int = 0) -> None:
        self.seen: list[tuple[int, int, int]] = []
        self.works = works
        self.takes_ns = takes_ns
        self.bench = Bench(infer=self.infer, depth=depth, run_warm_up_row=self.run_warm_up_row)

    def infer(self, n: int, inputs: Any, sizes: Any) -> Any:
        raise ValueError("no")

    def run_warm_up_row(self) -> None:
        segment = self.bench.worker_segment
        in_flight = len(self.bench.backend.launched) - segment.batches.get()
        self.seen.append((in_flight, segment.running.get(), segment.progress_ns.get()))
        self.bench.now_ns += self.takes_ns
        if not self.works:
            raise RuntimeError("the weights are gone")

    @property
    def checks(self) -> int:
        return len(self.seen)

    def send(self, times: int = 1, *, good: bool = False) -> None:
        bench = self.bench
        bench.backend.infer = affine if good else self.infer
        for _ in range(times):
            batch = bench.send((1, 0))
            bench.run()
            bench.proxy.finished()
            bench.proxy.free(batch)
            bench.proxy.advance()


def test_rows_that_fail_without_end_restart_no_worker_whose_model_works() -> None:
    """C36: the warm-up row tells the two apart."""
    model = Broken(works=True)
    model.send(200)
    assert model.checks == 100, "every second failure in a row is looked into"


def test_a_broken_model_is_left_at_the_second_failure_before_that_is_published() -> None:
    """C36: two in a row, and the warm-up row fails as well."""
    model = Broken(works=False)
    model.send()
    with pytest.raises(MustRestart, match="2 batches failed in a row, and the warm-up row too: R"):
        model.send()
    assert model.bench.worker_segment.batches.get() == 1
    assert model.bench.worker_segment.sq_consumer().pending() == 1, "it runs again elsewhere"


def test_a_good_batch_in_between_shows_that_the_model_works() -> None:
    model = Broken(works=False)
    for _ in range(50):
        model.send()
        model.send(good=True)
    assert model.checks == 0


def test_a_batch_of_refused_rows_shows_nothing() -> None:
    model = Broken(works=False)
    model.send()

    def refuse(n: int, inputs: Any, sizes: Any) -> Any:
        raise InvalidInput("no")

    fails, model.infer = model.infer, refuse  # type: ignore[method-assign]
    model.send()
    model.infer = fails  # type: ignore[method-assign]
    with pytest.raises(MustRestart):
        model.send()


def test_checks_take_at_most_a_tenth_of_the_time() -> None:
    model = Broken(works=True, takes_ns=2 * S)
    model.send(2)
    assert model.checks == 1
    model.send(20)
    assert model.checks == 1
    model.bench.now_ns += 18 * S - 1
    model.send(2)
    assert model.checks == 1
    model.bench.now_ns += 1
    model.send()
    assert model.checks == 2


def test_after_a_failure_one_batch_runs_at_a_time_until_one_is_good() -> None:
    """The check uses what a batch in flight would use, so nothing may be in flight then."""
    model = Broken(works=True, depth=2)
    bench = model.bench
    for slot in range(4):
        bench.send((1, slot))
    bench.run()
    assert [in_flight for in_flight, _, _ in model.seen] == [1, 1], "the failed batch itself"
    launched = len(bench.backend.launched)
    bench.backend.infer = affine
    for batch in bench.proxy.finished():
        bench.proxy.free(batch)
    bench.proxy.advance()
    for slot in range(3):
        bench.send((1, slot))
    bench.worker.step()
    bench.worker.step()  # finishes the first, which is good
    bench.worker.step()
    bench.worker.step()
    assert len(bench.backend.launched) - launched == 3
    assert bench.worker_segment.batches.get() == 5


def test_the_time_of_the_check_is_not_the_batchs() -> None:
    """The supervisor judges a batch by the progress word."""
    model = Broken(works=True)
    model.send()
    bench = model.bench
    batch = bench.send((1, 0))
    bench.worker.step()
    bench.now_ns += 5 * S
    bench.worker.step()
    assert model.seen == [(1, batch.token, bench.now_ns)]
