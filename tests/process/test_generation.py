"""A generator in a whole pool: its sequences outlive every process that they run in."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest

import batchpool as bp
from batchpool.client.control import ask_reload
from tests.process.generating_models import GATE_AT, KILLER, TOKENS_MOST, tokens_of
from tests.process.pool_under_test import PATIENCE_S, Pool, process_state, serving, until
from tests.process.web import ask, outputs

MODEL = {
    "import": "tests.process.generating_models:Story", "name": "story", "max_batch": 64,
    "max_wait_ms": 10,
}  # fmt: skip
MANY = 64


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with serving(MODEL, server={"client_slots": 128}) as pool:
        yield pool


def prompts(gate: int, n: int = MANY) -> list[list[int]]:
    """Prompts of different lengths, all of which wait at one gate."""
    return [[gate, *range(at, at + at % 7)] for at in range(n)]


def submitted(client: bp.Client, rows: list[list[int]], **options: Any) -> list[Future[Any]]:
    return [client.submit("story", prompt=[row], **options) for row in rows]


def at_gate(pool: Pool, gate: int, n: int) -> list[int]:
    """The pids of the workers in which sequences came to a gate, once so many did."""
    path = pool.notes / f"at-{gate}"

    def lines() -> list[str]:
        return path.read_text().splitlines() if path.exists() else []

    until(lambda: len(lines()) >= n, f"{n} sequences at gate {gate}")
    return [int(line) for line in lines()]


def open_gate(pool: Pool, gate: int) -> None:
    (pool.notes / f"gate-{gate}").touch()


def left(pool: Pool, gate: int) -> int:
    """The sequences of a gate that left before they were done."""
    path = pool.notes / f"left-{gate}"
    return len(path.read_text().splitlines()) if path.exists() else 0


def assert_whole(rows: list[list[int]], futures: list[Future[Any]]) -> None:
    for row, future in zip(rows, futures, strict=True):
        found = future.result(PATIENCE_S)
        assert found["token"].tolist() == [tokens_of(row, TOKENS_MOST)]
        assert found["finish_reason"].tolist() == [b"length"]


def counted(pool: Pool, name: str) -> int:
    """The sum of a metric over the workers."""
    text = ask(pool, "/metrics").body.decode()
    values = re.findall(rf"^batchpool_worker_{name}(?:{{.*}})? (\S+)$", text, re.M)
    return sum(int(float(value)) for value in values)


def test_sequences_go_on_when_their_worker_is_killed(pool: Pool) -> None:
    rows = prompts(1)
    with pool.client() as client:
        futures = submitted(client, rows)
        (pid,) = set(at_gate(pool, 1, MANY))
        os.kill(pid, signal.SIGKILL)
        open_gate(pool, 1)
        assert_whole(rows, futures)
    assert counted(pool, "sequences_resumed_total") == MANY
    assert counted(pool, "sequences_total") == MANY
    prompt_tokens = sum(map(len, rows)) + sum(len(row) + GATE_AT for row in rows)
    assert counted(pool, "tokens_total") == prompt_tokens + MANY * TOKENS_MOST
    # A gauge, which a worker sets after its step; what is counted stands there before the answer.
    until(lambda: counted(pool, "sequences_running") == 0, "the end of the last step")


def test_sequences_go_on_when_the_batcher_is_killed(pool: Pool) -> None:
    rows = prompts(2)
    with pool.client() as client:
        futures = submitted(client, rows)
        pids = at_gate(pool, 2, MANY)
        (batcher,) = pool.pids("batcher")
        os.kill(batcher, signal.SIGKILL)
        open_gate(pool, 2)
        assert_whole(rows, futures)
        assert set(pids) == set(pool.pids("worker")), "the worker was not disturbed"


def test_every_stream_flows_to_its_last_token_while_there_is_no_batcher(pool: Pool) -> None:
    rows = prompts(9)
    with pool.client() as client:
        streams = [client.stream("story", prompt=row, timeout_s=PATIENCE_S) for row in rows]
        at_gate(pool, 9, MANY)
        (batcher,) = pool.pids("batcher")
        pool.signal(signal.SIGSTOP)  # the supervisor, which would start the next batcher
        try:
            os.kill(batcher, signal.SIGKILL)
            until(lambda: process_state(batcher)[0] == "Z", "the batcher's end")
            open_gate(pool, 9)
            for row, stream in zip(rows, streams, strict=True):
                read: list[int] = []
                while len(read) < TOKENS_MOST and (new := stream.next_tokens()) is not None:
                    read += new.tolist()
                assert read == tokens_of(row, TOKENS_MOST)
        finally:
            pool.signal(signal.SIGCONT)
        for stream in streams:  # the next batcher finds that they are done
            assert stream.next_tokens() is None
            assert stream.finish_reason == "length"


def test_a_row_that_kills_its_worker_fails_alone(pool: Pool) -> None:
    rows = prompts(3, 6)
    with pool.client() as client:
        futures = submitted(client, rows)
        at_gate(pool, 3, len(rows))
        guilty = client.submit("story", prompt=[[KILLER]])
        at_gate(pool, KILLER, 1)
        open_gate(pool, 3)  # suspects run apart until they have made some tokens
        with pytest.raises(bp.WorkerLost):
            guilty.result(PATIENCE_S)
        assert_whole(rows, futures)
        assert len(at_gate(pool, KILLER, 1)) == 3, "attempts"


def test_the_sequences_of_a_client_that_leaves_end_at_once(pool: Pool) -> None:
    with pool.client() as stays, pool.client() as leaves:
        theirs = prompts(4, 3)
        futures = submitted(stays, theirs)
        submitted(leaves, prompts(5, 4))
        at_gate(pool, 4, 3)
        at_gate(pool, 5, 4)
        leaves.close()
        until(lambda: left(pool, 5) == 4, "the end of the sequences of a client that left")
        until(lambda: len(pool.lanes()) == 1, "the end of its lane")
        open_gate(pool, 4)
        assert_whole(theirs, futures)


def test_the_sequences_of_a_front_end_that_dies_end_at_once(pool: Pool) -> None:
    prompt = {"name": "prompt", "datatype": "INT32", "shape": [1, 1], "data": [8]}
    body = json.dumps({"inputs": [prompt]}).encode()
    with socket.create_connection(("127.0.0.1", pool.port)) as caller:
        head = f"POST /v2/models/story/infer HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}"
        caller.sendall(f"{head}\r\n\r\n".encode() + body)
        at_gate(pool, 8, 1)
        (frontend,) = pool.pids("frontend")
        os.kill(frontend, signal.SIGKILL)
        until(lambda: left(pool, 8) == 1, "the end of the sequence of a front end that died")


def test_a_sequence_ends_at_its_deadline(pool: Pool) -> None:
    with pool.client() as client:

        def one_has_left() -> bool:
            (late,) = submitted(client, prompts(6, 1), timeout_s=0.5)
            with pytest.raises(bp.DeadlineExceeded):
                late.result(PATIENCE_S)
            return left(pool, 6) > 0

        # One that a busy machine is late to begin with leaves no worker.
        until(one_has_left, "its place in the worker is free")
        until(lambda: pool.claimed() == 0, "its slot is free")


def test_a_generator_answers_an_infer_request_as_any_model(pool: Pool) -> None:
    prompt = {"name": "prompt", "datatype": "INT32", "shape": [1, 3], "data": [0, 8, 9]}
    request = {"inputs": [prompt], "parameters": {"max_tokens": 7}}
    answer = ask(pool, "/v2/models/story/infer", json.dumps(request).encode())
    found = outputs(answer)
    assert found["token"] == tokens_of([0, 8, 9], 7)
    assert found["finish_reason"] == ["length"]


def test_sequences_go_on_in_the_heir_of_a_reload(pool: Pool) -> None:
    rows = prompts(7, 8)
    with pool.client() as client:
        futures = submitted(client, rows)
        (old,) = set(at_gate(pool, 7, len(rows)))
        path = pool.folder / "pool.toml"
        path.write_text(path.read_text() + "attempts = 4\n")
        ask_reload(pool.socket, wait=True)
        (heir,) = pool.pids("worker")
        assert heir != old
        assert at_gate(pool, 7, 2 * len(rows))[len(rows) :] == [heir] * len(rows)
        open_gate(pool, 7)
        assert_whole(rows, futures)
