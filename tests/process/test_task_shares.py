"""The shares of callers in the store of tasks, over HTTP: names do not multiply them."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.process.gates import open_gate, opened_at_last
from tests.process.pool_under_test import Pool, serving, until
from tests.process.task_calls import ASYNC, ended, probe_body, result, submit
from tests.process.web import Answer, ask, outputs

TEXTS = json.dumps({"instances": ["x" * 4000] * 8}).encode()


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """A pool that keeps few bytes of tasks, of callers whom a proxy names."""
    folder = tmp_path_factory.mktemp("state")
    server = {
        "tasks": True,
        "state_dir": str(folder),
        "tasks_max_mib": 1,
        "forwarded_allow_ips": ["127.0.0.1"],
    }
    with serving("Echo", server=server) as pool:
        yield pool


def sent(pool: Pool, address: str, name: str) -> Answer:
    """The answer to a new task of a caller at this address."""
    fields = {"X-Forwarded-For": address, "X-Client-Id": name}
    return submit(pool, "echo", TEXTS, fields)


def test_a_caller_that_collects_nothing_leaves_room_for_others(pool: Pool) -> None:
    answers = [sent(pool, "10.0.0.1", f"name {n}") for n in range(40)]
    assert answers[0].status == 202
    refused = answers[-1]
    assert (refused.status, refused.object["code"]) == (503, "tasks_full")
    assert "the caller at 10.0.0.1 take their share of the 1 MiB" in refused.object["error"]
    assert "retry-after" in refused.headers
    other = sent(pool, "10.0.0.2", "name 1")
    assert other.status == 202
    assert sent(pool, "10.0.0.1", "another name").status == 503
    for answer in answers:
        if answer.status == 202:
            ended(pool, answer.headers["location"])
            assert ask(pool, answer.headers["location"], method="DELETE").status == 204
    assert sent(pool, "10.0.0.1", "name 1").status == 202
    counts = ask(pool, "/metrics").body.decode()
    assert 'batchpool_tasks_refused_total{reason="bytes_share_full"}' in counts


# One row a batch, so that the order of the calls is that of the tasks.
IN_ORDER = {
    "import": "Gated",
    "max_batch": 1,
    "max_wait_ms": 0,
    "policy": "fixed",
    "request_timeout_s": 300,
    "batch_timeout_s": 300,
}
NAMED, OTHERS = 60, 12


def sent_from(pool: Pool, source: str, name: str, tag: int, gate: int = 0) -> str:
    """The path of a task of a caller who calls from this address."""
    fields = {**ASYNC, "X-Client-Id": name}
    answer = ask(pool, "/v2/models/gated/infer", probe_body(tag, gate), fields, source=source)
    assert answer.status == 202, answer
    return answer.headers["location"]


def states(pool: Pool, paths: list[str]) -> list[str]:
    ids = [path.rpartition("/")[2] for path in paths]
    found = ask(pool, "/v2/tasks/query", json.dumps({"ids": ids}).encode())
    return [task["state"] for task in found.object["tasks"]]


@pytest.mark.parametrize("restarts", [False, True])
def test_many_names_of_one_address_do_not_delay_another_address(
    tmp_path: Path, *, restarts: bool
) -> None:
    """Also after the task process was killed: where a task comes from is kept with it."""
    server = {"tasks": True, "state_dir": str(tmp_path / "state"), "frontends": 1}
    with serving(IN_ORDER, server=server) as pool, opened_at_last(pool, 1):
        gated = sent_from(pool, "127.0.0.2", "first", 0, gate=1)
        until(lambda: states(pool, [gated]) == ["running"], "the task that holds up all others")
        named = [sent_from(pool, "127.0.0.2", f"name {n}", 1 + n) for n in range(NAMED)]
        others = [sent_from(pool, "127.0.0.3", "one name", 100 + n) for n in range(OTHERS)]
        until(lambda: "running" in states(pool, named), "tasks that wait in the pool")
        before = states(pool, [*named, *others]).count("running")  # that have had their turn
        assert before < NAMED // 3
        if restarts:
            (pid,) = pool.pids("tasks")
            os.kill(pid, signal.SIGKILL)
            until(lambda: pool.pids("tasks") not in ([], [pid]), "another task process")
        open_gate(pool, 1)
        calls = sorted(
            (outputs(result(pool, path))["call"][0], path in others)
            for path in (gated, *named, *others)
        )
    order = [is_other for _, is_other in calls]
    places = [place for place, is_other in enumerate(order) if is_other]
    for number, place in enumerate(places, 1):
        assert place <= 1 + before + 2 * number + 2, order
