"""Streams of tokens out of a real pool: callers that read, callers that leave, a dead worker."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest

import batchpool as bp
from tests.process.pool_under_test import PATIENCE_S, Pool, serving, until

PATH = "/v2/models/counting/generate_stream"


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    counting = "tests.process.generator_models:Counting"
    with serving({"import": counting, "max_batch": 256, "slots": 256, "max_wait_ms": None}) as pool:
        yield pool


def body(last: int, **parameters: Any) -> bytes:
    return json.dumps({"prompt": [0, last], "parameters": parameters}).encode()


def post(pool: Pool, content: bytes) -> socket.socket:
    """A connection on which a stream was asked for."""
    sock = socket.create_connection(("127.0.0.1", pool.port), timeout=PATIENCE_S)
    head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(content)}\r\n\r\n"
    sock.sendall(head.encode() + content)
    return sock


def in_slots(pool: Pool) -> int:
    """Rows that some lane has claimed."""
    return sum(lane["claimed"] for lane in pool.status()["lanes"])


def all_free(pool: Pool) -> None:
    until(lambda: in_slots(pool) == 0, "all slots are free")


def test_both_clients_get_all_tokens_in_order(pool: Pool) -> None:
    with pool.client() as client:
        stream = client.stream("counting", prompt=[0, 7], parameters={"max_tokens": 300})
        assert list(stream) == list(range(8, 308))
        assert (stream.finish_reason, len(stream.tokens)) == ("length", 300)
        found = client.infer("counting", prompt=[[1, 95]])
        assert found["token"].tolist() == [list(range(96, 101))]
        assert found["finish_reason"].tolist() == [b"stop"]

    async def read() -> None:
        async with pool.async_client() as client:
            streams = [client.stream("counting", prompt=[1, 50 * n]) for n in range(1, 9)]

            async def tokens(n: int) -> list[int]:
                return [token async for token in streams[n - 1]]

            found = await asyncio.gather(*(tokens(n) for n in range(1, 9)))
            for n, got in enumerate(found, 1):
                assert got == list(range(50 * n + 1, 100 * (n // 2 + 1) + 1))
            assert {stream.finish_reason for stream in streams} == {"stop"}

    asyncio.run(read())
    all_free(pool)


def test_an_empty_prompt_is_refused_by_whom_it_is_given_to(pool: Pool) -> None:
    text = "input 'prompt' is empty; at least 1 of"
    with pool.client() as client:
        for call in (client.infer, client.stream):
            with pytest.raises(bp.InvalidInput, match=text):
                call("counting", prompt=np.zeros((1, 0), np.int32))
    for path in (PATH, PATH.removesuffix("_stream")):
        url = f"http://127.0.0.1:{pool.port}{path}"
        answer = httpx.post(url, json={"prompt": []}, timeout=PATIENCE_S)
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")
        assert text in answer.json()["error"]
    assert "sequences failed" not in pool.log


def test_local_callers_that_leave_free_their_places(pool: Pool) -> None:
    with pool.client() as client:
        for _ in range(20):
            for token in client.stream("counting", prompt=[0, 7]):
                assert token == 8
                break
        kept = client.stream("counting", prompt=[0, 7])
        assert next(kept) == 8
        until(lambda: in_slots(pool) == 1, "one is left")
    all_free(pool)


def test_curl_shows_tokens_as_they_come(pool: Pool) -> None:
    url = f"http://127.0.0.1:{pool.port}{PATH}"
    curl = subprocess.Popen(["curl", "-sN", url, "-d", body(7)], stdout=subprocess.PIPE)
    assert curl.stdout is not None
    try:
        first = json.loads(curl.stdout.readline().removeprefix(b"data: "))
        assert first["token"][0] == 8
        assert "finish_reason" not in first
        assert in_slots(pool) == 1, "it runs on"
    finally:
        curl.kill()
        curl.wait()
        curl.stdout.close()
    all_free(pool)


def test_two_hundred_callers_that_leave_amid_their_streams_leak_no_slot(pool: Pool) -> None:
    callers = [post(pool, body(n)) for n in range(200)]
    for n, caller in enumerate(callers):
        with caller, caller.makefile("rb") as answer:
            assert answer.readline().startswith(b"HTTP/1.1 200 ")
            while not (line := answer.readline()).startswith(b"data: "):
                pass
            assert json.loads(line[6:])["token"][0] == n + 1
    all_free(pool)
    with pool.client() as client:
        found = client.infer("counting", prompt=[[0, 1]], parameters={"max_tokens": 3})
        assert found["token"].tolist() == [[2, 3, 4]]


def test_streams_go_on_where_their_worker_died(pool: Pool) -> None:
    with pool.client() as client:
        stream = client.stream("counting", prompt=[0, 7], parameters={"max_tokens": 800})
        assert next(stream) == 8
        with post(pool, body(50, max_tokens=800)) as caller, caller.makefile("rb") as answer:
            while not answer.readline().startswith(b"data: "):
                pass
            os.kill(pool.pids("worker")[0], signal.SIGKILL)
            assert list(stream) == list(range(9, 808))
            assert stream.finish_reason == "length"
            while b'"finish_reason":"length"' not in (line := answer.readline()):
                assert b"error" not in line
            assert json.loads(line[6:])["token"][-1:] in ([850], [])
    all_free(pool)
