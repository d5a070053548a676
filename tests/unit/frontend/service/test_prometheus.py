"""GET /metrics: valid in both forms, and what was observed is what is rendered."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable

import httpx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from batchpool.batcher.metrics import BatcherMetrics, End
from batchpool.control.batch_messages import BatchCounts
from batchpool.control.task_messages import TaskStatus
from batchpool.core.compiled import CODE
from batchpool.core.layout.states import BatchOutcome, DispatchReason
from batchpool.core.metrics import table
from batchpool.core.metrics.table import COUNTER, HISTOGRAM, METRICS, metric_of
from batchpool.frontend.http.request_counters import ASGI, FAST, RequestCounters
from batchpool.frontend.service.gpu_metrics import Gpu, Gpus
from batchpool.frontend.service.prometheus import Scrape
from batchpool.shm.stats.counters import BATCHER, Counters
from batchpool.worker.metrics import COMPUTE, WorkerMetrics
from tests.unit.counters import new_counters
from tests.unit.frontend.calls import affine
from tests.unit.frontend.frontend_double import Edge, calling, edge, request, serving
from tests.unit.frontend.loops import on_loop, until
from tests.unit.frontend.models import Affine, Picky

INFER = "/v2/models/affine/infer"
OPENMETRICS = {"Accept": "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"}
NOW = 10**15

Key = tuple[str, tuple[tuple[str, str], ...]]


def numbers(families: Iterable[Metric]) -> dict[Key, float]:
    """{(sample's name, its labels): value}; every sample once."""
    found: dict[Key, float] = {}
    for family in families:
        for sample in family.samples:
            key = sample.name, tuple(sorted(sample.labels.items()))
            assert key not in found, f"{key} twice"
            found[key] = sample.value
    return found


def parsed(text: str) -> dict[Key, float]:
    return numbers(text_string_to_metric_families(text))


def value(found: dict[Key, float], name: str, /, **labels: str) -> float:
    return found[name, tuple(sorted(labels.items()))]


class NoGpus(Gpus):
    def look(self) -> list[Gpu]:
        return []


class TwoGpus(Gpus):
    """The second does not know its utilisation."""

    def look(self) -> list[Gpu]:
        used = {"gpu_memory_used_bytes": 3.0 * 2**30, "gpu_memory_total_bytes": 80.0 * 2**30}
        return [
            Gpu("0", "NVIDIA H100", {**used, "gpu_utilization_ratio": 0.25}),
            Gpu("1", 'a "quoted" name', used),
        ]


def body_of(
    counters: Counters,
    gpus: Gpus | None = None,
    accept: bytes = b"",
    tasks: TaskStatus | None = None,
) -> str:
    return Scrape(counters, gpus or NoGpus(), "1.2.3")(accept, tasks).body.decode()


# -- rendering ------------------------------------------------------------------------------


def busy() -> Counters:
    """Counters in which everybody has counted something."""
    counters = new_counters(2, "one", "two")
    metrics = BatcherMetrics(counters.cells, counters.place("batcher", 1))
    metrics.admit(70)
    metrics.dispatch(np.full(64, NOW - 3_000_000), DispatchReason.FULL, NOW)
    metrics.finish(BatchOutcome.OK, 2, 5_000_000)
    metrics.end(End.OK, 64)
    for i in range(2):
        meter = RequestCounters(counters.cells, counters.place("frontend", i, 1))
        meter.count_error(FAST, "overloaded")
        meter.count_ok(ASGI, 0)
    counters.label_worker_slot(0, "two", 0, "gpu 0")
    worker = WorkerMetrics(counters.cells, counters.place("worker", 0))
    worker.took(COMPUTE, 2_000_000)
    worker.finish(BatchOutcome.OK, 64, 1)
    return counters


def test_both_forms_are_valid_and_say_the_same() -> None:
    counters = busy()
    plain = parsed(body_of(counters, TwoGpus()))
    text = body_of(counters, TwoGpus(), b"application/openmetrics-text; version=1.0.0")
    assert text.endswith("# EOF\n")
    assert numbers(openmetrics.text_string_to_metric_families(text)) == plain
    assert value(plain, "batchpool_rows_admitted_total", model="two", stage="infer") == 70
    assert value(plain, "batchpool_queue_seconds_count", model="two", stage="infer") == 64
    assert value(plain, "batchpool_queue_seconds_sum", model="two", stage="infer") == pytest.approx(
        0.192
    )
    assert (
        value(plain, "batchpool_queue_seconds_bucket", model="two", stage="infer", le="0.002") == 0
    )
    assert (
        value(plain, "batchpool_queue_seconds_bucket", model="two", stage="infer", le="0.005") == 64
    )
    assert value(
        plain, "batchpool_http_requests_total",
        model="two", road="fast", code="503", reason="overloaded",
    ) == 2  # fmt: skip
    failed = {"model": "two", "stage": "infer", "worker": "0", "device": "gpu 0"}
    failed["outcome"] = "failed"
    assert value(plain, "batchpool_worker_rows_total", **failed) == 1
    assert value(plain, "batchpool_gpu_utilization_ratio", device="0", name="NVIDIA H100") == 0.25


def test_every_metric_of_the_table_has_its_help_and_type_in_its_order() -> None:
    counters = busy()
    for row in (BATCHER, 0):
        at = counters.place("process", row)
        counters.cells[at + table.BLOCKS["process"].word("process_up")] = 1
        counters.cells[at + table.BLOCKS["process"].word("process_pid")] = 5
    words = [1, *[0] * (metric_of("task_seconds").words_each - 2), 7]
    tasks = TaskStatus(
        {"m": {"queued": 2}}, {"m": {"model_error": 1}}, 1, 2.5, 4096, {"submitted": 3},
        {"task_seconds": {"m": words}, "task_commit_seconds": {"": words}},
        batches=BatchCounts({"completed": 2}, {"completed": 9, "failed": 1}, 5, 4096),
        refusals={"bytes_share_full": 2},
    )  # fmt: skip
    body = body_of(counters, TwoGpus(), tasks=tasks)
    assert 'batchpool_tasks{model="m",state="queued"} 2.0' in body
    assert "batchpool_task_oldest_seconds 2.5" in body
    assert 'batchpool_tasks_refused_total{reason="bytes_share_full"} 2.0' in body
    assert 'batchpool_batches_kept{state="completed"} 2.0' in body
    assert 'batchpool_batch_lines_total{outcome="failed"} 1.0' in body
    families = list(text_string_to_metric_families(body))
    shown = [(f.name, f.type, f.documentation) for f in families]
    expected = [
        (m.name.removesuffix("_total") if m.kind == COUNTER else m.name, m.kind, m.help)
        for m in METRICS
    ]
    assert shown == expected
    for family, metric in zip(families, METRICS, strict=True):
        for sample in family.samples:
            own = set(sample.labels) - {"le"} if metric.kind == HISTOGRAM else set(sample.labels)
            assert own == set(metric.label_names), sample


def test_what_is_not_known_is_absent() -> None:
    found = parsed(body_of(new_counters(1)))
    names = {name for name, _ in found}
    assert not any("gpu" in name or "queue" in name for name in names)
    build = (("code", CODE), ("python", _python()), ("version", "1.2.3"))
    assert ("batchpool_build_info", build) in found
    labelled = {key for key in found if ("model", "") in key[1]}
    assert labelled == set(), "no request was for no model"


def _python() -> str:
    import platform

    return platform.python_version()


WAITS_NS = st.integers(0, 100 * 10**9)


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(list(End)), st.integers(1, 500)), max_size=20),
    st.lists(st.lists(WAITS_NS, min_size=1, max_size=12), max_size=10),
    st.lists(st.tuples(st.integers(0, 2), st.sampled_from(table.HTTP_OUTCOMES)), max_size=30),
)
def test_what_was_observed_is_what_is_rendered(
    ends: list[tuple[End, int]],
    batches: list[list[int]],
    answers: list[tuple[int, tuple[str, str]]],
) -> None:
    counters = new_counters(3, "other", "m")
    metrics = BatcherMetrics(counters.cells, counters.place("batcher", 1))
    for end, n in ends:
        metrics.end(end, n)
    for waits in batches:
        metrics.dispatch(NOW - np.array(waits), DispatchReason.WAIT, NOW)
    endpoints = [
        RequestCounters(counters.cells, counters.place("frontend", i, 1)) for i in range(3)
    ]
    for i, (code, reason) in answers:
        if code == "200":
            endpoints[i].count_ok(FAST, 0)
        else:
            endpoints[i].count_error(FAST, reason)

    found = parsed(body_of(counters))
    rows: Counter[str] = Counter()
    for end, n in ends:
        rows[table.ROW_OUTCOMES[end]] += n
    for reason in table.ROW_OUTCOMES:
        sample = "batchpool_rows_ended_total"
        assert value(found, sample, model="m", stage="infer", reason=reason) == rows[reason]
        assert value(found, sample, model="other", stage="infer", reason=reason) == 0
    flat = [wait for waits in batches for wait in waits]
    assert value(found, "batchpool_queue_seconds_count", model="m", stage="infer") == len(flat)
    assert value(found, "batchpool_queue_seconds_sum", model="m", stage="infer") == pytest.approx(
        sum(flat) / 1e9
    )
    for bound in metric_of("queue_seconds").bounds:
        below = sum(wait <= bound for wait in flat)
        le = f"{bound / 1e9:g}"
        assert (
            value(found, "batchpool_queue_seconds_bucket", model="m", stage="infer", le=le) == below
        )
    counted = Counter(answer for _, answer in answers)
    for (code, reason), n in counted.items():
        labels = {"model": "m", "road": "fast", "code": code, "reason": reason}
        assert value(found, "batchpool_http_requests_total", **labels) == n
    ok = counted["200", "ok"]
    assert value(found, "batchpool_http_request_seconds_count", model="m") == ok


# -- over HTTP ------------------------------------------------------------------------------


async def scraped(http: httpx.AsyncClient) -> dict[Key, float]:
    answer = await http.get("/metrics")
    assert answer.status_code == 200
    return parsed(answer.text)


def requests(found: dict[Key, float]) -> dict[tuple[str, str, str, str], float]:
    """{(model, road, code, reason): how many}, without zeros."""
    return {
        (labels["model"], labels["road"], labels["code"], labels["reason"]): n
        for (name, pairs), n in found.items()
        if name == "batchpool_http_requests_total" and n
        for labels in [dict(pairs)]
    }


@on_loop
async def test_it_is_answered_as_other_questions_are() -> None:
    async with edge(Affine) as it:
        answer = await it.http.get("/metrics")
        assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        answer = await it.http.get("/metrics", headers=OPENMETRICS)
        assert answer.headers["content-type"].startswith("application/openmetrics-text; version=1")
        assert answer.text.endswith("# EOF\n")
        head = await it.http.head("/metrics")
        assert (head.status_code, head.headers["content-type"][:10]) == (200, "text/plain")
        wrong = await it.http.post("/metrics", json={})
        assert (wrong.status_code, wrong.json()["code"]) == (405, "method_not_allowed")
        assert wrong.headers["allow"] == "GET, HEAD"
        assert requests(await scraped(it.http)) == {}, "questions are not infer requests"


@on_loop
async def test_requests_of_both_roads_are_counted_once_by_how_they_ended() -> None:
    async with edge(Affine, Picky) as it, serving(it) as site, calling(site) as caller:
        body = httpx.Request("POST", "http://x", json=affine(1.0)).content
        negative = httpx.Request("POST", "http://x", json=affine(-1.0)).content
        for path, content in (
            (INFER, body),
            (INFER, body),
            (INFER, b"{"),
            ("/v2/models/picky/infer", negative),
            ("/v2/models/nobody/infer", body),
        ):
            await caller.send(request(path, content))
            await caller.answer()
        await it.http.post(INFER, json=affine(2.0))
        await it.http.post(INFER, content=b"")
        assert (await it.http.get(INFER)).status_code == 405
        found = await scraped(it.http)
        picky = [key for key in requests(found) if key[0] == "picky"]
        assert len(picky) == 1
        assert requests(found) == {
            ("affine", "fast", "200", "ok"): 2,
            ("affine", "fast", "400", "invalid_request"): 1,
            ("affine", "asgi", "200", "ok"): 1,
            ("affine", "asgi", "400", "invalid_request"): 1,
            picky[0]: 1,
            ("", "asgi", "404", "not_found"): 1,
        }
        assert value(found, "batchpool_http_request_seconds_count", model="affine") == 3
        assert value(found, "batchpool_http_request_seconds_sum", model="affine") > 0


def total_of(it: Edge, **labels: str) -> float:
    return it.counters.totals().value("http_requests_total", **labels)


@pytest.mark.parametrize("fast", [True, False])
@on_loop
async def test_a_caller_that_goes_is_counted_as_gone(fast: bool) -> None:
    async with edge(Affine, max_batch=1) as it, serving(it, fast=fast) as site:
        it.pool.hold = True
        body = httpx.Request("POST", "http://x", json=affine(1.0)).content
        lane_client = it.pool.lane_client("affine")
        async with calling(site) as caller:
            await caller.send(request(INFER, body))
            await until(lambda: lane_client.allocator.claimed == 1, "it is under way")
            assert total_of(it) == 0
        await until(lambda: total_of(it, code="499", reason="cancelled") == 1, "it has gone")
        it.pool.release()
        await until(lambda: lane_client.allocator.claimed == 0, "its slot is free")
        assert total_of(it) == 1


@on_loop
async def test_scrapes_do_not_hold_each_other_up() -> None:
    async with edge(Affine) as it:
        answers = await asyncio.gather(*(it.http.get("/metrics") for _ in range(20)))
        assert {answer.status_code for answer in answers} == {200}
        assert len({answer.text for answer in answers}) == 1
