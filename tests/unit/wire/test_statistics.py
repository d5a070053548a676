"""The statistics objects: what each figure is counted from."""

from __future__ import annotations

from batchpool.core.metrics.table import BLOCKS, metric_of
from batchpool.core.metrics.totals import Totals
from batchpool.wire.statistics import model_statistics, statistics


def block(writer: str, **values: dict[tuple[str, ...], int]) -> list[int]:
    """A writer's words: {metric: {case: word}}; for a histogram () is (count, sum in ns)."""
    words = [0] * BLOCKS[writer].used
    for name, cases in values.items():
        for case, value in cases.items():
            words[BLOCKS[writer].word(name, *case)] += value
    return words


def timed(writer: str, words: list[int], name: str, bucket: int, count: int, ns: int) -> None:
    """Count values into a bucket of a histogram."""
    at = BLOCKS[writer].word(name)
    words[at + bucket] += count
    words[at + metric_of(name).words_each - 1] += ns


def busy() -> Totals:
    totals = Totals()
    batcher = block(
        "batcher",
        rows_ended_total={("ok",): 40, ("model_error",): 2},
        batches_finished_total={("ok",): 7, ("failed",): 1},
        last_inference_timestamp_seconds={(): 1_700_000_000_123_456_789},
    )
    timed("batcher", batcher, "queue_seconds", 0, 30, 600)
    timed("batcher", batcher, "queue_seconds", 5, 12, 90_000_000_000_000_001)
    totals.add("batcher", ("m", "infer"), batcher)
    for device in ("gpu 0", "gpu 1"):
        worker = block("worker")
        timed("worker", worker, "worker_gather_seconds", 1, 4, 10)
        timed("worker", worker, "worker_compute_seconds", 2, 4, 1000)
        timed("worker", worker, "worker_scatter_seconds", 3, 3, 100)
        totals.add("worker", ("m", "0", device, "infer"), worker)
    frontend = block(
        "frontend",
        http_requests_total={
            ("fast", "200", "ok"): 11,
            ("fast", "503", "overloaded"): 3,
            ("asgi", "499", "cancelled"): 1,
        },
        http_failed_seconds_total={(): 444},
    )
    timed("frontend", frontend, "http_request_seconds", 4, 11, 5500)
    for _ in range(2):  # front ends
        totals.add("frontend", ("m",), frontend)
    totals.add("batcher", ("other", "infer"), block("batcher", rows_ended_total={("ok",): 1000}))
    return totals


def test_every_figure_is_the_whole_pools() -> None:
    assert model_statistics("m", "1", busy()) == {
        "name": "m",
        "version": "1",
        "last_inference": 1_700_000_000_123,
        "inference_count": 40,
        "execution_count": 7,
        "inference_stats": {
            "success": {"count": 22, "ns": 11_000},
            "fail": {"count": 8, "ns": 888},
            "queue": {"count": 42, "ns": 90_000_000_000_000_601},
            "compute_input": {"count": 8, "ns": 20},
            "compute_infer": {"count": 8, "ns": 2000},
            "compute_output": {"count": 6, "ns": 200},
            "cache_hit": {"count": 0, "ns": 0},
            "cache_miss": {"count": 0, "ns": 0},
        },
        "response_stats": {},
        "batch_stats": [],
        "memory_usage": [],
    }


def test_all_models_come_in_the_order_of_their_names_and_idle_ones_too() -> None:
    found = statistics(("idle", "other", "m"), "1", busy())["model_stats"]
    assert [each["name"] for each in found] == ["idle", "other", "m"]
    assert [each["inference_count"] for each in found] == [0, 1000, 40]
    assert found[0]["last_inference"] == 0
    assert found[2] == model_statistics("m", "1", busy())
