"""The shares of callers in the store of tasks, over HTTP: names do not multiply them."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.process.pool_under_test import Pool, serving
from tests.process.task_calls import ended, submit
from tests.process.web import Answer, ask

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
