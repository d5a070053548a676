"""Models that are loaded over HTTP: the configuration file says which, and the pool serves on."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import httpx
import pytest

from batchpool.client.control import ask_reload
from tests.process.pool_under_test import Pool, model_table, serving, toml, until

EXPLICIT = {"frontends": 2, "model_control_mode": "explicit"}
AFFINE = {"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}]}
SCALED = {
    "inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP64", "data": [1, 2]}],
    "parameters": {"shift": 1},
}


def configure(pool: Pool, *models: str, **server: Any) -> None:
    """Another configuration file, in place of the one that the pool was started with."""
    settings = {"port": pool.port, "socket": pool.socket, **EXPLICIT, **server}
    (pool.folder / "pool.toml").write_text(toml(settings, [model_table(m) for m in models]))


def calling(pool: Pool) -> httpx.Client:
    """One connection, and so one front end."""
    return httpx.Client(base_url=f"http://127.0.0.1:{pool.port}/v2", timeout=90)


def load(http: httpx.Client, model: str) -> tuple[int, str]:
    """The status and the text of a load."""
    answer = http.post(f"/repository/models/{model}/load", json={})
    return answer.status_code, answer.json()["error"] if answer.content else ""


def index(http: httpx.Client) -> list[tuple[str, str]]:
    return [(each["name"], each["state"]) for each in http.post("/repository/index").json()]


def test_models_come_and_go_with_the_file() -> None:
    with serving("Affine", server=EXPLICIT) as pool, calling(pool) as http:
        assert index(http) == [("affine", "READY")]
        configure(pool, "Affine", "Scaled")
        assert http.get("/models/scaled").status_code == 404, "nobody has asked for it"

        assert load(http, "scaled") == (200, "")
        assert "an HTTP caller loads model 'scaled'" in pool.log
        assert index(http) == [("affine", "READY"), ("scaled", "READY")]
        answer = http.post("/models/scaled/infer", json=SCALED)
        assert answer.json()["outputs"][0]["data"] == [2, 3]
        for _ in range(8):  # of the other front end, too
            with calling(pool) as other:
                until(lambda http=other: len(index(http)) == 2, "it has heard of the model")

        configure(pool, "Affine")
        status, text = load(http, "scaled")
        assert (status, "the configuration file has no model 'scaled'" in text) == (404, True)
        assert index(http) == [("affine", "READY")]
        assert http.post("/models/affine/infer", json=AFFINE).status_code == 200


@pytest.mark.parametrize("broken", ["LoadRaises", "Nobody"])
def test_a_load_that_fails_changes_nothing_and_says_why(broken: str) -> None:
    with serving("Affine", server=EXPLICIT) as pool, calling(pool) as http:
        pool.tracebacks_expected = True  # of the model, for its author
        (pid,) = pool.pids("worker")
        configure(pool, "Affine", broken)
        status, text = load(http, broken.lower())
        assert status == 400
        assert f"model '{broken.lower()}' was not loaded" in text
        assert broken in text or broken.lower() in text
        assert pool.pids("worker") == [pid]
        assert http.post("/models/affine/infer", json=AFFINE).status_code == 200


@pytest.mark.long
def test_the_configuration_opens_and_shuts_it_while_the_pool_runs() -> None:
    server = {**EXPLICIT, "model_control_mode": "none"}
    with serving("Affine", server=server) as pool, calling(pool) as http:
        status, text = load(http, "affine")
        assert (status, "model_control_mode" in text) == (403, True)
        configure(pool, "Affine")
        assert ask_reload(pool.socket, wait=True)[0]
        until(lambda: load(http, "affine")[0] == 200, "the front end knows")
        configure(pool, "Affine", model_control_mode="none")
        assert ask_reload(pool.socket, wait=True)[0]
        until(lambda: load(http, "affine")[0] == 403, "the front end knows")


@pytest.mark.long
def test_no_request_fails_and_loads_are_shared() -> None:
    """Eight callers load while others infer."""
    with serving("Affine", server={**EXPLICIT, "frontends": 1}) as pool:
        statuses: list[int] = []
        over = threading.Event()

        async def loads() -> list[int]:
            url = f"http://127.0.0.1:{pool.port}/v2/repository/models/affine/load"
            async with httpx.AsyncClient(timeout=90) as http:
                answers = await asyncio.gather(*(http.post(url) for _ in range(8)))
            return [answer.status_code for answer in answers]

        def infers() -> None:
            with calling(pool) as http:
                while not over.is_set():
                    statuses.append(http.post("/models/affine/infer", json=AFFINE).status_code)

        caller = threading.Thread(target=infers)
        caller.start()
        try:
            assert asyncio.run(loads()) == [200] * 8
        finally:
            over.set()
            caller.join()
        assert set(statuses) == {200}
        assert pool.log.count("reloading: reading the configuration") <= 2
