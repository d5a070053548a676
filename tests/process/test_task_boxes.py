"""Two pools on one Redis: any of them answers for any task, and takes over from one that died."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.process.pool_under_test import serving, until
from tests.process.task_calls import accepted, ended, probe_body, result, state, submit, tags
from tests.process.web import ask
from tests.redis_server import RedisServer, redis_server

TASKS = 300


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with redis_server("--appendonly", "yes") as server:
        yield server


def settings(server: RedisServer) -> dict[str, Any]:
    return {"tasks": True, "tasks_store": server.address.url, "tasks_lease_s": 2}


def test_boxes_share_their_tasks_and_outlive_each_other_and_the_server(
    server: RedisServer,
) -> None:
    """Complaints 4, 6 and 10: no box answers 404 for another one's task, and what a killed box had
    claimed is neither stuck nor run into a second result."""
    gated = {"import": "Gated", "max_batch": 64, "max_wait_ms": 0}
    with serving(gated, server=settings(server)) as one, serving(
        gated, server=settings(server)
    ) as other:  # fmt: skip
        path = accepted(one, "gated", probe_body(7), {"Idempotency-Key": "k", "X-Client-Id": "c"})
        assert tags(result(other, path)) == [7]
        again = submit(other, "gated", probe_body(7), {"Idempotency-Key": "k", "X-Client-Id": "c"})
        assert again.headers["idempotency-replayed"] == "true"
        assert again.headers["location"] == path

        # Each pool has a gate of its own, so what either has claimed is under way until it is open.
        with ThreadPoolExecutor(8) as threads:
            paths = list(
                threads.map(
                    lambda tag: accepted((one, other)[tag % 2], "gated", probe_body(tag, gate=1)),
                    range(TASKS),
                )
            )
        for pool in (one, other):
            until(lambda pool=pool: pool.claimed() > 1, "claims of each box")
        cancelled = paths.pop()
        assert ask(other, cancelled, method="DELETE").status == 204
        one.expected_status = -signal.SIGKILL
        os.killpg(one.pid, signal.SIGKILL)
        one.wait_end()
        (other.notes / "gate-1").touch()
        found = [tags(result(other, path)) for path in paths]
        assert found == [[tag] for tag in range(TASKS - 1)]
        assert {state(other, path)["state"] for path in paths} == {"done"}
        assert state(other, cancelled)["state"] == "cancelled"
        keys = [f"bp:{{{partition}}}:open" for partition in range(16)]
        assert server.say("EXISTS", *keys) == b":0\r\n", "nothing is open any more"

        queued = accepted(other, "gated", probe_body(8, gate=2))
        server.kill()
        refused = until(
            lambda: (got := submit(other, "gated", probe_body(9))).status != 202 and got, "503"
        )
        assert refused.refused == (503, "not_ready")
        assert "retry-after" in refused.headers
        assert ask(other, "/v2/health/ready").status == 200
        at_once = ask(other, "/v2/models/gated/infer", probe_body(9))
        assert tags(at_once) == [9], "requests that wait are none of its business"
        server.start()
        (other.notes / "gate-2").touch()
        until(lambda: ask(other, queued).status == 200, "the server's return")
        assert ended(other, queued)["state"] == "done"
        assert tags(result(other, queued)) == [8]
