"""One snapshot of everything."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from batchpool.client.pool_facts import ModelFacts
from batchpool.core.errors import Status
from batchpool.core.layout.states import BatchOutcome, DispatchReason
from batchpool.core.metrics.totals import Totals
from batchpool.core.tensors.spec import Tensor
from batchpool.frontend.dashboard.rates import Span
from batchpool.frontend.dashboard.snapshot import SnapshotInputs, compose, lane_views, sizes
from batchpool.model import spec_of
from batchpool.shm.stats.flight_recorder import LOST, RecordedBatch
from batchpool.shm.stats.recent_errors import RecentError
from tests.unit.frontend.dashboard.counted import STATUS, block, totals
from tests.unit.frontend.models import Affine

FACTS = ModelFacts(0, spec_of(Affine), 0.9, 30.0, 8)
ANSWERED = "http_requests_total"


def counted(n: int) -> Totals:
    """Totals after n rounds."""
    own = ("affine", "0", "gpu 1", "infer")
    return totals(
        (
            "batcher",
            ("affine", "infer"),
            block(
                "batcher",
                ("batches_total", ("full",), 3 * n),
                ("batches_total", ("idle",), n),
                ("rows_ended_total", ("ok",), 20 * n),
                ("rows_retried_total", ("no_memory",), n),
                ("queue_rows", (), 5),
                times={"batch_rows": [8] * 3 * n + [1] * n, "queue_seconds": [0.003] * n},
            ),
        ),
        (
            "frontend",
            ("affine",),
            block(
                "frontend",
                (ANSWERED, ("fast", "200", "ok"), 10 * n),
                (ANSWERED, ("asgi", "200", "ok"), 2 * n),
                (ANSWERED, ("fast", "503", "overloaded"), 4 * n),
                (ANSWERED, ("fast", "400", "invalid_request"), 1),
            ),
        ),
        (
            "supervisor",
            ("affine",),
            block("supervisor", ("claims_refused_total", ("local", "full"), 6 * n)),
        ),
        (
            "worker",
            own,
            block(
                "worker",
                ("worker_batches_total", ("ok",), 4 * n),
                ("worker_rows_total", ("ok",), 20 * n),
            ),
        ),
    )  # fmt: skip


def batch(serial: int, **facts: Any) -> RecordedBatch:
    values = dict.fromkeys(RecordedBatch.__annotations__, 0)
    values |= {
        "serial": serial,
        "rows": 8,
        "reason": int(DispatchReason.FULL),
        "outcome": int(BatchOutcome.OK),
    }
    values |= {"dispatched_ns": 7_000_000_000, "completed_ns": 7_004_000_000}
    return RecordedBatch(**{**values, **facts})


def sight(**facts: Any) -> SnapshotInputs:
    seen: dict[str, Any] = {
        "span": Span(counted(3), counted(1), 2.0),
        "facts": [FACTS],
        "state": "ready",
        "status": STATUS,
        "why": "",
        "now_s": 1000.0,
        "now_ns": 8_000_000_000,
        "batches": [],
        "worker_names": ["worker 0 of affine"],
        "model_names": ["affine"],
        "recent_errors": [],
        "gpus": {"1": {"gpu_memory_used_bytes": 3.0, "gpu_memory_total_bytes": 4.0}},
        "version": "9",
    }
    return SnapshotInputs(**{**seen, **facts})


def test_a_model() -> None:
    (model,) = compose(sight())["models"]
    assert model["name"] == "affine"
    assert model["ready"] is True
    assert (model["workers"], model["max_batch"], model["queued"]) == ("1/1", 8, 5)
    assert (model["requests_per_s"], model["rows_per_s"]) == (12, 20)
    assert model["batches"] == {
        "per_s": 4,
        "mean_rows": 50 / 8,
        "rows": [[1, 2], [2, 0], [4, 0], [8, 6]],
    }
    assert model["reasons"] == {"full": 6, "idle": 2}
    assert model["codes"] == [
        {"code": "invalid_request", "total": 1, "per_s": 0},
        {"code": "overloaded", "total": 12, "per_s": 4},
        {"code": "local: full", "total": 18, "per_s": 6},
        {"code": "rerun: no_memory", "total": 3, "per_s": 1},
    ]
    assert model["latency"]["request"] == {"p50": None, "p90": None, "p99": None}
    assert 2 < model["latency"]["queue"]["p50"] <= 5


def test_the_stages_of_a_model() -> None:
    """Queue, batches and times of each; the share of time in batches tells the bottleneck."""
    spec = replace(spec_of(Affine), features=(Tensor("ids", "int32"),))
    facts = replace(FACTS, spec=spec)

    def counted_stages(n: int) -> Totals:
        blocks = []
        for stage, queued, seconds in (("preprocess", 3, 0.5), ("infer", 1, 0.125)):
            times = {"batch_rows": [4] * n, "batch_seconds": [0.25] * n}
            words = block("batcher", ("queue_rows", (), queued), times=times)
            blocks.append(("batcher", ("affine", stage), words))
            work = block("worker", times={"worker_compute_seconds": [seconds] * n})
            blocks.append(("worker", ("affine", "0", "cpu", stage), work))
        return totals(*blocks)

    of_each = {"preprocess": {"workers": "1/2"}, "infer": {"workers": "1/1"}}
    models = {"affine": {"workers": "1/1", "stages": of_each}}
    span = Span(counted_stages(3), counted_stages(1), 2.0)
    (model,) = compose(sight(facts=[facts], span=span, status={"models": models}))["models"]
    first, second = model["stages"]
    assert (first["name"], first["workers"], first["busy"]) == ("preprocess", "1/2", 0.5)
    assert (second["name"], second["workers"], second["busy"]) == ("infer", "1/1", 0.125)
    assert (first["queued"], second["queued"], model["queued"]) == (3, 1, 4)
    assert first["mean_rows"] == 4
    assert first["latency"]["batch"]["p50"] is not None
    assert model["batches"]["per_s"] == 0, "those of infer"
    (without,) = compose(sight(facts=[facts], span=span, status={}))["models"]
    assert without["stages"][0]["busy"] is None
    assert compose(sight())["models"][0]["stages"] == []
    after = replace(facts.spec, features=(), predictions=facts.spec.features)
    (model,) = compose(sight(facts=[replace(facts, spec=after)], span=span))["models"]
    assert [stage["name"] for stage in model["stages"]] == ["infer", "postprocess"]


def test_slots_are_those_of_the_models_lanes_front_ends_first() -> None:
    slots = compose(sight())["models"][0]["slots"]
    assert (slots["claimed"], slots["total"], slots["watermark"]) == (7, 74, 0.9)
    assert [lane["owner"][:10] for lane in slots["lanes"]] == [
        "frontend 0", "frontend 1", "client 1 (",
    ]  # fmt: skip


def test_many_local_clients_are_one_line() -> None:
    clients = [{"owner": f"client {i} (pid 1)", "claimed": i, "slots": 10} for i in range(6)]
    front = {"owner": "frontend 0 (pid 2)", "claimed": 5, "slots": 50}
    assert len(lane_views([front, *clients[:5]])) == 6
    assert lane_views([front, *clients]) == [
        front,
        {"owner": "6 local clients", "claimed": 15, "slots": 60},
    ]


def test_workers_and_processes() -> None:
    snapshot = compose(sight())
    worker, heir = snapshot["workers"]
    assert worker["name"] == "worker 0 of affine"
    assert (worker["device"], worker["state"], worker["restarts"]) == ("gpu 1", "serving", 2)
    assert (worker["batches_per_s"], worker["rows_per_s"]) == (4, 20)
    assert worker["gpu"] == {"used_bytes": 3, "total_bytes": 4, "utilization": None}
    assert worker["last_error"] == "<b>"
    assert heir["name"] == "replacement of worker 0 of affine"
    assert (heir["device"], heir["gpu"]) == (None, None)
    assert [(p["name"], p["progress_age_s"]) for p in snapshot["processes"]] == [
        ("supervisor", None), ("batcher", 0.1),
    ]  # fmt: skip


def test_the_last_batches_newest_first() -> None:
    first = batch(1)
    lost = batch(
        2, outcome=LOST, dispatched_ns=0, completed_ns=7_500_000_000, worker_slot=4, model=9
    )
    assert compose(sight(batches=[first, lost]))["batches"] == [
        {
            "time_s": 999.5, "model": "unknown", "rows": 8, "reason": "full", "worker": "unknown",
            "outcome": "lost", "ms": None,
        },
        {
            "time_s": pytest.approx(999.004), "model": "affine", "rows": 8, "reason": "full",
            "worker": "worker 0 of affine", "outcome": "ok", "ms": 4,
        },
    ]  # fmt: skip


def test_the_same_error_again_is_one_line() -> None:
    bad = RecentError(1, 1_000_000_000, 0, 0, int(Status.MODEL_ERROR), "<i>bad</i>")
    other = replace(bad, serial=2, status=int(Status.WORKER_LOST), text="")
    again = replace(bad, serial=3, at_ns=6_000_000_000)
    errors = compose(sight(recent_errors=[bad, other, again]))["errors"]
    assert [(e["code"], e["text"], e["times"]) for e in errors] == [
        ("model_error", "<i>bad</i>", 2),
        ("worker_lost", "the worker died while it ran this row, on every attempt", 1),
    ]
    assert errors[0]["time_s"] == 998


def test_without_the_supervisors_account_what_was_counted_is_still_shown() -> None:
    snapshot = compose(sight(status=None, why="the supervisor does not answer"))
    assert snapshot["pool"] == {
        "state": "ready", "url": None, "uptime_s": None, "why": "the supervisor does not answer",
    }  # fmt: skip
    (model,) = snapshot["models"]
    assert model["ready"] is None
    assert model["requests_per_s"] == 12
    assert model["slots"]["total"] == 0
    assert snapshot["workers"] == snapshot["processes"] == []
    assert msgspec.json.decode(msgspec.json.encode(snapshot)) == snapshot


def test_sizes_end_at_the_largest_batch() -> None:
    rows = counted(1).histogram("batch_rows", model="affine")
    assert sizes(rows, 6) == [[1, 1], [2, 0], [4, 0], [6, 3]]
    assert sizes(rows, 1) == [[1, 1]]
