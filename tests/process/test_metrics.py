"""Metrics and flight recorder of a real pool: what its callers counted, whoever died meanwhile."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from batchpool.client.control import ask_batches
from tests.process.gates import open_gate, opened_at_last
from tests.process.pool_under_test import PATIENCE_S, Pool, command, serving, until
from tests.process.web import ROADS, ask

MODELS = "tests.process.models"
GATED = {"import": f"{MODELS}:Gated", "max_batch": 4, "slots": 16}
FAULTY = {"import": f"{MODELS}:Faulty", "attempts": 1}
FRONTENDS = 2
CROWD = 40  # requests at once: more than the slots of both front ends

Labels = tuple[tuple[str, str], ...]


class Scrape:
    """One answer of /metrics, of whichever front end took the connection."""

    def __init__(self, pool: Pool) -> None:
        answer = ask(pool, "/metrics")
        assert answer.status == 200
        self.values: dict[tuple[str, Labels], float] = {}
        self.counters: dict[tuple[str, Labels], float] = {}
        for family in text_string_to_metric_families(answer.body.decode()):
            for sample in family.samples:
                key = sample.name, tuple(sorted(sample.labels.items()))
                self.values[key] = sample.value
                if family.type != "gauge":
                    self.counters[key] = sample.value

    def sum(self, name: str, **labels: str) -> float:
        wanted = set(labels.items())
        return sum(
            value
            for (found, own), value in self.values.items()
            if found == f"batchpool_{name}" and wanted <= set(own)
        )

    def by(self, name: str, label: str, **labels: str) -> dict[str, float]:
        """Without zeros."""
        found = {
            dict(own)[label]
            for own_name, own in self.values
            if own_name == f"batchpool_{name}" and label in dict(own)
        }
        sums = {value: self.sum(name, **{label: value}, **labels) for value in found}
        return {value: n for value, n in sums.items() if n}


class Callers:
    """Callers over HTTP who count what they are answered."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.seen: Counter[tuple[str, str]] = Counter()  # (model, status)
        self._lock = threading.Lock()

    def infer(self, model: str, body: bytes, headers: Mapping[str, str] | None = None) -> int:
        answer = ask(self.pool, f"/v2/models/{model}/infer", body, headers)
        with self._lock:
            self.seen[model, str(answer.status)] += 1
        return answer.status

    def gated(self, gate: int, headers: Mapping[str, str] | None = None) -> int:
        return self.infer("gated", gated_body(gate), headers)


def gated_body(gate: int) -> bytes:
    body = (
        '{"inputs":[{"name":"tag","shape":[1],"datatype":"INT64","data":[1]},'
        '{"name":"seconds","shape":[1],"datatype":"FP32","data":[0]},'
        '{"name":"gate","shape":[1],"datatype":"INT64","data":[%d]}]}'
    )
    return (body % gate).encode()


def faulty_body(fault: int) -> bytes:
    body = (
        '{"inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":[1]},'
        '{"name":"fault","shape":[1],"datatype":"INT64","data":[%d]}]}'
    )
    return (body % fault).encode()


@contextmanager
def watched(pool: Pool) -> Iterator[list[int]]:
    """Scrape without pause: every answer is valid, and no counter ever goes back."""
    faults: list[BaseException] = []
    done = threading.Event()
    scrapes = [0]

    def watch() -> None:
        before: dict[Any, float] = {}
        while not done.is_set():
            try:
                counters = Scrape(pool).counters
                for key, value in before.items():
                    assert counters.get(key, -1) >= value, key
                before = counters
                scrapes[0] += 1
            except (OSError, http.client.HTTPException):  # its front end was killed
                continue
            except BaseException as exc:
                faults.append(exc)
                return
            done.wait(0.1)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield scrapes
    finally:
        done.set()
        thread.join(PATIENCE_S)
        assert faults == []


def hold(pool: Pool, callers: Callers, executor: ThreadPoolExecutor, gate: int) -> Any:
    """A request whose row is RUNNING until its gate opens."""
    before = begun(pool)
    answer = executor.submit(callers.gated, gate)
    until(lambda: begun(pool) > before, "its start")
    return answer


def begun(pool: Pool) -> float:
    """Batches of `gated` that its worker has begun with."""
    return Scrape(pool).sum("worker_gather_seconds_count", model="gated")


def test_counts_are_those_of_the_callers_over_outcomes_and_deaths() -> None:
    """C68: always valid, never less than before, equal to what was sent."""
    server = {"frontends": FRONTENDS}
    with serving(GATED, FAULTY, server=server) as pool, pool.client() as local:
        pool.tracebacks_expected = True
        callers = Callers(pool)
        with (
            watched(pool) as scrapes,
            ThreadPoolExecutor(CROWD) as executor,
            opened_at_last(pool, 1, 2, 3, 4),
        ):
            outcomes(pool, callers, executor)
            local.infer("gated", tag=[1, 2, 3], seconds=[0.0] * 3, gate=[0] * 3)
            agree(pool, callers, local_rows=3)
            deaths(pool, callers, executor)
            found = agree(pool, callers, local_rows=3)
            until(lambda: scrapes[0] > 10, "scrapes meanwhile")

        assert found.by("rows_retried_total", "reason", model="gated") == {"worker_lost": 1}
        assert found.by("batches_finished_total", "outcome", model="gated")["lost"] == 1
        assert found.by("process_restarts_total", "process") == {
            "batcher": 1, "frontend 0": 1, "worker 0 of gated": 1,
        }  # fmt: skip
        pids = {row["name"]: row["pid"] for row in pool.status()["processes"]}
        assert found.by("process_pid", "process") == pids
        for name in ("queue_rows", "lane_claimed_slots"):
            assert found.sum(name) == 0


def outcomes(pool: Pool, callers: Callers, executor: ThreadPoolExecutor) -> None:
    """Requests of every kind, on every road, that end in every way there is."""
    for road in ROADS.values():
        assert callers.infer("gated", road.write("x", [1]), road.headers) == 400
    for _ in range(20):
        assert callers.gated(0) == 200
    assert callers.infer("faulty", faulty_body(0)) == 200
    assert callers.infer("faulty", faulty_body(1)) == 500
    assert callers.infer("nobody", faulty_body(1)) == 404
    held = hold(pool, callers, executor, 1)
    assert callers.gated(1, {"X-Request-Timeout-Ms": "100"}) == 504
    crowd = [executor.submit(callers.gated, 1) for _ in range(CROWD - 1)]
    until(lambda: callers.seen["gated", "503"] > 5, "refusals")
    open_gate(pool, 1)
    assert {answer.result(PATIENCE_S) for answer in (held, *crowd)} == {200, 503}
    leave(pool, executor, callers)


def leave(pool: Pool, executor: ThreadPoolExecutor, callers: Callers) -> None:
    """A caller that goes while its row is RUNNING."""
    before = pool.tally("gated")["admitted"]
    body = gated_body(2)
    head = f"POST /v2/models/gated/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", pool.port), timeout=PATIENCE_S) as connection:
        connection.sendall(head.encode() + body)
        until(lambda: pool.tally("gated")["admitted"] > before, "its admission")
    callers.seen["gated", "499"] += 1
    until(lambda: Scrape(pool).sum("http_requests_total", code="499") == 1, "word of its going")
    open_gate(pool, 2)


def agree(pool: Pool, callers: Callers, local_rows: int) -> Scrape:
    """Every count is what the callers counted, whichever front end is asked."""

    def is_quiet() -> bool:
        tally = pool.tally("gated")
        return bool(tally["completed"] == tally["admitted"] and not tally["fill"])

    until(is_quiet, "the end of what was left behind")
    # What the supervisor sees of lanes and processes is up to a quarter of a second old.
    until(lambda: Scrape(pool).sum("lane_claimed_slots") == 0, "its next look")
    found = Scrape(pool)
    seen = {
        (model, code): n
        for model in ("gated", "faulty", "")
        for code, n in found.by("http_requests_total", "code", model=model).items()
    }
    expected = {("" if m == "nobody" else m, code): n for (m, code), n in callers.seen.items()}
    assert seen == expected
    for model in ("gated", "faulty"):
        ok = callers.seen[model, "200"]
        assert found.sum("http_request_seconds_count", model=model) == ok
        admitted = found.sum("rows_admitted_total", model=model)
        ended = found.by("rows_ended_total", "reason", model=model)
        assert admitted == sum(ended.values())
        at_least = ok + (local_rows if model == "gated" else 0)
        assert ended["ok"] >= at_least
        # Beyond that: rows whose callers had gone or were answered 504 while they ran.
        assert ended["ok"] - at_least <= callers.seen[model, "499"] + callers.seen[model, "504"]
        assert found.sum("worker_rows_total", model=model, outcome="ok") == ended["ok"]
        assert found.sum("batch_rows_count", model=model) == found.sum(
            "batches_total", model=model
        ) == sum(found.by("batches_finished_total", "outcome", model=model).values())  # fmt: skip
        assert found.sum("queue_seconds_count", model=model) == found.sum(
            "batch_rows_sum", model=model
        )
    for _ in range(2 * FRONTENDS):
        assert Scrape(pool).counters == found.counters
    return found


def deaths(pool: Pool, callers: Callers, executor: ThreadPoolExecutor) -> None:
    """kill -9 of a worker and of the batcher with a row RUNNING, and of an idle front end."""
    pids = {row["name"]: row["pid"] for row in pool.status()["processes"]}
    for gate, victim in ((3, "worker 0 of gated"), (4, "batcher")):
        answer = hold(pool, callers, executor, gate)
        os.kill(pids[victim], signal.SIGKILL)
        until(lambda victim=victim: is_replaced(pool, victim, pids[victim]), "another one")
        assert not answer.done()
        open_gate(pool, gate)
        assert answer.result(PATIENCE_S) == 200
    os.kill(pids["frontend 0"], signal.SIGKILL)
    until(lambda: is_replaced(pool, "frontend 0", pids["frontend 0"]), "another one")
    for _ in range(10):
        assert callers.gated(0) == 200


def is_replaced(pool: Pool, name: str, pid: int) -> bool:
    row = next(row for row in pool.status()["processes"] if row["name"] == name)
    return row["pid"] != pid and row["state"] in ("running", "serving")


@pytest.mark.long
def test_the_flight_recorder_tells_of_a_batcher_that_stands_still_or_died() -> None:
    with serving("Gated") as pool, pool.client() as client:
        x = {"tag": [1, 2], "seconds": [0.0] * 2}
        for _ in range(3):
            client.infer("gated", gate=[0] * 2, **x)
        before = ask_batches(pool.socket, 1000)
        assert [(b["rows"], b["outcome"], b["worker"]) for b in before] == [
            (2, "OK", "worker 0 of gated")
        ] * 3
        assert all(b["ran_ms"] is not None and b["age_s"] >= 0 for b in before)

        future = client.submit("gated", gate=[5] * 2, **x)
        until(lambda: pool.tally("gated")["batches"] == 4, "its dispatch")
        (victim,) = pool.pids("batcher")
        os.kill(victim, signal.SIGSTOP)
        assert len(ask_batches(pool.socket, 2)) == 2, "it is not asked"
        os.kill(victim, signal.SIGKILL)
        until(lambda: is_replaced(pool, "batcher", victim), "another one")
        open_gate(pool, 5)
        future.result(PATIENCE_S)
        client.infer("gated", gate=[0] * 2, **x)
        after = ask_batches(pool.socket, 1000)
        assert [b["token"] for b in after] == [1, 2, 3, 4, 5]
        assert [b["sent_ms"] is None for b in after] == [False, False, False, True, False]
        assert [b["age_s"] for b in after] == sorted((b["age_s"] for b in after), reverse=True)
        argv = command("status", "--batches", "2", "--socket", pool.socket)
        said = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=PATIENCE_S)
        assert said.stdout.count("worker 0 of gated") == 2
        assert said.stdout.startswith("batches\n")
