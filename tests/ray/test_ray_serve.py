"""Deployments of Ray Serve whose replicas are clients of pools."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import batchpool as bp
from tests.process.pool_under_test import is_alive, serving, until

pytestmark = [
    pytest.mark.ray,
    # Ray's own, of its modules and of what its threads leave
    pytest.mark.filterwarnings("ignore"),
]
AFFINE = "batchpool.examples.affine:Affine"
LIMIT_S = 90


def answer(reply: Any) -> Any:
    return reply.result(timeout_s=LIMIT_S)


def pids_of(words: str) -> list[int]:
    """The supervisors of pools that were started with these words."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            line = Path(f"/proc/{name}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if f"batchpool serve {words}" in line:
            found.append(int(name))
    return found


def environment_of(pid: int) -> dict[str, str]:
    fields = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return dict(field.split("=", 1) for field in fields if field)


def run(app: Any, name: str) -> Any:
    from ray import serve

    return serve.run(app, name=name, route_prefix=f"/{name}")


def posted(port: int, name: str, body: bytes) -> tuple[int, Any]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/{name}", body, LIMIT_S) as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def ends(function: Callable[[], Any]) -> bool:
    try:
        function()
    except Exception:  # of Ray, while it puts a replica in the place of another
        return False
    return True


def test_a_replica_starts_a_pool_with_its_gpus_and_ends_it(cluster: int) -> None:
    from ray import serve

    from batchpool.contrib.ray import PoolDeployment

    words = f"--model {AFFINE} --max-batch 17"
    pool = PoolDeployment.options(ray_actor_options={"num_gpus": 2})
    handle = run(pool.bind("affine", serve=words.split()), "own")
    (pid,) = pids_of(words)
    assert environment_of(pid)["CUDA_VISIBLE_DEVICES"] == "0,1"
    rows = [handle.remote({"x": np.full(4, n, np.float32)}) for n in range(300)]
    for n, reply in enumerate(rows):
        np.testing.assert_array_equal(answer(reply)["y"], np.full(4, 2 * n + 1, np.float32))
    x = np.arange(40, dtype=np.float32).reshape(10, 4)
    np.testing.assert_array_equal(answer(handle.infer.remote({"x": x}))["y"], 2 * x + 1)
    with pytest.raises(bp.InvalidRequest, match="has no input 'z'"):
        answer(handle.remote({"z": 1}))
    serve.delete("own")
    until(lambda: not is_alive(pid), "the end of the replica's pool")


def test_http_has_rows_as_json_and_the_status_of_errors(cluster: int) -> None:
    from ray import serve

    from batchpool.contrib.ray import app

    run(app({"serve": f"--model {AFFINE}"}), "http")
    assert posted(cluster, "http", b'{"x": [1, 2, 3, 4]}') == (200, {"y": [3, 5, 7, 9]})
    assert posted(cluster, "http", b"[1, 2, 3, 4]") == (200, {"y": [3, 5, 7, 9]})
    status, error = posted(cluster, "http", b'{"x": [1]}')
    assert (status, error["code"]) == (400, "invalid_request")
    status, error = posted(cluster, "http", b"{")
    assert status == 400
    assert error["error"].startswith("the body is no JSON")
    serve.delete("http")


def test_a_replica_attaches_to_the_pool_of_its_node_whose_health_is_its_own(cluster: int) -> None:
    from ray import serve

    from batchpool.contrib.ray import app

    counting = {"import": "tests.process.generator_models:Counting", "max_wait_ms": None}
    with serving(counting, "Affine") as pool:
        handle = run(app({"model": "counting", "socket": pool.socket}), "node")
        answer(handle.check_health.remote())
        prompt = {"prompt": [np.array([1, 90], np.int32)]}
        tokens = handle.options(stream=True).stream.remote(prompt)
        assert [int(token) for token in tokens] == list(range(91, 101))
        pool.stop()
        with pytest.raises(bp.PoolStopped):
            answer(handle.check_health.remote())
    serve.delete("node")


def test_a_pool_that_dies_is_replaced_with_its_replica(cluster: int) -> None:
    from ray import serve

    from batchpool.contrib.ray import PoolDeployment

    words = f"--model {AFFINE} --max-batch 19"
    pool = PoolDeployment.options(health_check_period_s=0.5)
    handle = run(pool.bind(serve=words.split()), "dies")
    (pid,) = pids_of(words)
    os.kill(pid, signal.SIGKILL)
    until(lambda: [other for other in pids_of(words) if other != pid], "another pool")
    row = {"x": np.ones(4, np.float32)}
    until(lambda: ends(lambda: answer(handle.remote(row))), "an answer of the other pool")
    serve.delete("dies")


def test_the_example_answers(cluster: int) -> None:
    from ray import serve

    from batchpool.examples.ray_serve import app

    run(app, "example")
    assert posted(cluster, "example", b"[1, 2, 3, 6]") == (200, [-3, -1, 1, 7])
    serve.delete("example")


def test_what_cannot_work_is_said(cluster: int) -> None:
    from batchpool.contrib.ray import PoolReplica, app
    from batchpool.core.errors import ConfigError, StartError

    with pytest.raises(ConfigError, match="unknown argument 'sokcet'"):
        app({"sokcet": "/x"})
    with pytest.raises(ConfigError, match="patience_s=soon: a number of seconds was expected"):
        app({"patience_s": "soon"})
    with pytest.raises(StartError, match="no pool that is ready within 0 s"):
        asyncio.run(asyncio.to_thread(PoolReplica, socket="/nowhere/pool", patience_s=0.0))
