"""The counters of a generator's worker: tokens, times and ends of sequences."""

from __future__ import annotations

from batchpool.core.metrics.table import BLOCKS, TIME_BOUNDS_S
from batchpool.worker.generator_metrics import GeneratorMetrics
from tests.unit.worker.sequence_bench import SequenceBench
from tests.unit.worker.toy_generator import Toy, tokens_of

BLOCK = BLOCKS["worker"]
MS = 1_000_000


def count(metrics: GeneratorMetrics, name: str, *case: str) -> int:
    return int(metrics.cells[BLOCK.word(name, *case)])


def times(metrics: GeneratorMetrics, name: str) -> tuple[dict[float, int], int]:
    """The filled buckets of a histogram by their bounds, and its sum in ns."""
    at, n = BLOCK.word(name), len(TIME_BOUNDS_S)
    words = metrics.cells[at : at + n + 2].tolist()
    filled = {bound: count for bound, count in zip(TIME_BOUNDS_S, words, strict=False) if count}
    return filled, words[n + 1]


class Ticking(Toy):
    """A step takes 3 ms."""

    bench: SequenceBench

    def step(self) -> object:  # type: ignore[override]
        self.bench.now_ns += 3 * MS
        return super().step()


def test_tokens_times_and_ends_are_counted() -> None:
    toy = Ticking()
    bench = toy.bench = SequenceBench(toy)
    metrics = bench.loop._metrics
    bench.now_ns = 100 * MS
    bench.fill(1, 0, [1, 2], 4)
    bench.fill(1, 1, [1], 9, stop_at=2)
    bench.fill(4, 2, [1, 2, 3], 9)
    bench.lanes[4].outputs["token"].values[2, :5] = tokens_of([1, 2, 3], 5)
    bench.set_length(4, 2, 5)
    for lane, slot in ((1, 0), (1, 1), (4, 2)):
        bench.lanes[lane].submit_ns[slot] = 60 * MS
        bench.send(lane, slot)
    bench.loop.step()
    assert count(metrics, "worker_sequences_running") == 3
    assert count(metrics, "worker_kv_tokens_reserved") == 6 + 10 + 12
    bench.cancel(4, 2)
    bench.run()
    assert count(metrics, "worker_tokens_total", "prompt") == 2 + 1 + 3 + 5
    assert count(metrics, "worker_tokens_total", "generated") == 4 + 2 + 1
    assert count(metrics, "worker_sequences_resumed_total") == 1
    ends = {end: count(metrics, "worker_sequences_total", end) for end in ("stop", "length")}
    assert ends == {"stop": 1, "length": 1}
    assert count(metrics, "worker_sequences_total", "cancelled") == 1
    assert times(metrics, "worker_step_seconds") == ({0.005: 4}, 12 * MS)
    assert times(metrics, "worker_first_token_seconds") == ({0.05: 2}, 2 * 43 * MS)
    assert times(metrics, "worker_token_gap_seconds") == ({0.005: 5}, 5 * 3 * MS)
    assert count(metrics, "worker_sequences_running") == 0
    assert count(metrics, "worker_kv_tokens_reserved") == 0


def test_a_time_of_submission_that_a_client_changes_is_not_counted() -> None:
    """A sum of such times would be no number that a counter holds, and end the worker."""
    bench = SequenceBench()
    bench.now_ns = 100 * MS
    for slot, written in enumerate((-(2**63), 2**63 - 1, -(2**62))):
        bench.fill(1, slot, [slot], 2)
        bench.lanes[1].submit_ns[slot] = 60 * MS
        bench.send(1, slot)
        bench.lanes[1].submit_ns[slot] = written
    bench.run()
    assert times(bench.loop._metrics, "worker_first_token_seconds") == ({0.05: 3}, 3 * 40 * MS)


def test_gaps_of_different_lengths_fall_into_different_buckets() -> None:
    import numpy as np

    metrics = GeneratorMetrics()
    gaps = np.array([1 * MS, 7 * MS, 8 * MS, 90 * 1000 * MS], dtype=np.int64)
    metrics.step(MS, 4, gaps[:0], gaps)
    filled, total = times(metrics, "worker_token_gap_seconds")
    assert filled == {0.001: 1, 0.01: 2}
    assert total == int(gaps.sum())
    above_all = BLOCK.word("worker_token_gap_seconds") + len(TIME_BOUNDS_S)
    assert metrics.cells[above_all] == 1
