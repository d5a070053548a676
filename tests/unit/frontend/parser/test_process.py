"""The parser process gives what the codec gives, and its deaths cost nothing but time."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import batchpool as bp
from batchpool.core.errors import (
    InvalidRequest,
    Overloaded,
    PoolError,
    TooLarge,
    UnsupportedMediaType,
)
from batchpool.core.tensors.dtypes import Array
from batchpool.core.tensors.spec import ModelSpec
from batchpool.frontend.parser import __main__ as parser_main
from batchpool.frontend.parser import process as module
from batchpool.frontend.parser.messages import ParseJob, encoded_spec, receive_reply
from batchpool.frontend.parser.process import ParserProcess
from batchpool.model import spec_of
from batchpool.wire.codec import Codec
from batchpool.wire.request import InferRequest, OutputChoice, PlainAnswer

PATIENCE_S = 60
ROOT = Path(__file__).parents[4]


class Mixed(bp.Model):
    inputs = [
        bp.Tensor("x", "float32", (bp.Dim(8),)),
        bp.Tensor("words", "bytes", (2,), max_bytes=8),
    ]
    outputs = [bp.Tensor("y", "float32", (1,))]
    parameters = [
        bp.Tensor("scale", "float32", (), default=2.0),
        bp.Tensor("language", "bytes", (), max_bytes=8, default="en"),
    ]

    def infer(self, batch: bp.Batch) -> dict[str, Array]:
        raise NotImplementedError  # no row is run here


SPEC: ModelSpec = spec_of(Mixed)


@pytest.fixture
def parser() -> Iterator[ParserProcess]:
    parser = ParserProcess()
    yield parser
    parser.close()


def body(**changes: Any) -> bytes:
    x: dict[str, Any] = {"name": "x", "shape": [2, 3], "datatype": "FP32", "data": [*range(6)]}
    words = {"name": "words", "shape": [2, 2], "datatype": "BYTES", "data": ["a", "é", "", "b\0"]}
    return json.dumps({"inputs": [{**x, **changes}, words], "parameters": {"scale": 3}}).encode()


def parsed(parser: ParserProcess, raw: bytes) -> tuple[Any, ...]:
    request = parser.parse(SPEC, {}, raw)
    return request.rows.tensors["x"].tolist(), request.rows.tensors["words"].tolist()


RIGHT = ([[0, 1, 2], [3, 4, 5]], [[b"a", "é".encode()], [b"", b"b\0"]])


def test_a_request_is_that_of_the_codec(parser: ParserProcess) -> None:
    headers = {b"x-request-timeout-ms": b"250", b"x-request-priority": b"7"}
    ours, theirs = parser.parse(SPEC, headers, body()), Codec(SPEC).parse(headers, body())
    assert (ours.rows.n, ours.rows.parameters) == (2, theirs.rows.parameters)
    assert [type(value) for value in ours.rows.parameters.values()] == [float, bytes]
    assert (ours.timeout_ns, ours.priority, ours.form) == (250_000_000, 7, "json")
    assert ours.outputs == theirs.outputs
    for name, array in theirs.rows.tensors.items():
        assert ours.rows.tensors[name].dtype == array.dtype
        assert np.array_equal(ours.rows.tensors[name], array)


def test_classes_that_are_asked_for_come_through(parser: ParserProcess) -> None:
    raw = json.loads(body()) | {"outputs": [{"name": "y", "parameters": {"classification": 1}}]}
    (choice,) = parser.parse(SPEC, {}, json.dumps(raw).encode()).outputs
    assert choice == OutputChoice("y", False, 1)


def test_rows_of_different_sizes_keep_them(parser: ParserProcess) -> None:
    raw = json.loads(body(shape=[2, 3]))
    raw["inputs"].append({"name": "x.sizes", "shape": [2, 1], "datatype": "INT64", "data": [0, 3]})
    ours = parser.parse(SPEC, {}, json.dumps(raw).encode()).rows
    assert ours.sizes["x"].tolist() == [[0], [3]]
    assert ours.sizes["x"].dtype == np.int64


def test_plain_json_keeps_the_way_of_its_answer(parser: ParserProcess) -> None:
    raw = json.dumps({"inputs": {"x": [1, 2], "words": ["a", "b"]}}).encode()
    ours, theirs = parser.parse(SPEC, {}, raw), Codec(SPEC).parse({}, raw)
    assert ours.plain == theirs.plain == PlainAnswer("outputs", lone=True)
    assert (ours.form, ours.rows.tensors["x"].tolist()) == ("plain", [[1, 2]])
    ragged = json.dumps({"instances": [{"x": [1], "words": ["a", "b"]},
                                       {"x": [2, 3], "words": ["c", "d"]}]}).encode()  # fmt: skip
    ours = parser.parse(SPEC, {}, ragged)
    assert ours.plain == PlainAnswer("predictions", by_row=True)
    assert ours.rows.sizes["x"].tolist() == [[1], [2]]


def test_rows_without_an_element_come_through(parser: ParserProcess) -> None:
    ours = parser.parse(SPEC, {}, body(shape=[2, 0], data=[])).rows
    assert (ours.tensors["x"].shape, ours.tensors["x"].dtype) == ((2, 0), np.float32)


def test_a_mistake_of_the_parser_is_told_with_its_place(
    parser: ParserProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "encoded_spec", lambda spec: b"\xc0")  # no model at all
    with pytest.raises(RuntimeError, match=r"(?s)a long body could not be parsed.*decoded_spec"):
        parsed(parser, body())


def refuse_too_much() -> None:
    """Each of the names becomes an object of 50 bytes and a place in a table."""
    parser_main._MOST_FOLD = 1
    parser_main._SPARE_BYTES = 1 << 20
    ours, theirs = Pipe()
    names = ",".join(f'"{i:x}":{i}' for i in range(1_000_000)).encode()
    raw = b'{"parameters":{' + names + b"}," + body()[1:]
    sent = threading.Thread(target=parser_main.parse, args=(theirs, JOB, raw))
    sent.start()
    error = receive_reply(ours, SPEC)
    sent.join()
    assert isinstance(error, TooLarge)
    assert str(error).startswith(f"the {len(raw)} bytes of text in the body would take more than")
    parser_main.parse(theirs, JOB, body())
    assert isinstance(receive_reply(ours, SPEC), InferRequest), "the next one has its memory"


def test_text_of_which_too_much_would_be_made_is_too_large() -> None:
    """In a process of its own: what other tests have left free would be used first."""
    code = f"from {__name__} import refuse_too_much; refuse_too_much()"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


JOB = ParseJob(encoded_spec(SPEC), {})


@pytest.mark.parametrize(
    ("raw", "headers", "error"),
    [
        (b"{", {}, InvalidRequest),
        (body(shape=[2, 4]), {}, InvalidRequest),
        (body(shape=[1, 9], data=[0] * 9), {}, PoolError),
        (body(), {b"content-type": b"text/html"}, UnsupportedMediaType),
    ],
    ids=["no JSON", "another shape", "too large", "another type"],
)
def test_an_error_is_that_of_the_codec(
    parser: ParserProcess, raw: bytes, headers: dict[bytes, bytes], error: type[PoolError]
) -> None:
    with pytest.raises(error) as theirs:
        Codec(SPEC).parse(headers, raw)
    with pytest.raises(error) as ours:
        parser.parse(SPEC, headers, raw)
    assert type(ours.value) is type(theirs.value)
    assert ours.value.body() == theirs.value.body()


def test_nothing_holds_a_body_that_was_refused(parser: ParserProcess) -> None:
    class Body(bytearray):
        pass

    raw = Body(b"{")
    held = weakref.ref(raw)
    gc.disable()
    try:
        with pytest.raises(InvalidRequest):
            parser.parse(SPEC, {}, raw)
        del raw
        assert held() is None
    finally:
        gc.enable()


def test_one_process_parses_all_and_is_there_only_once_it_is_needed(parser: ParserProcess) -> None:
    assert parser.pid is None
    assert parsed(parser, body()) == RIGHT
    pid = parser.pid
    for _ in range(3):
        assert parsed(parser, body()) == RIGHT
    assert parser.pid == pid


def test_a_process_that_died_is_replaced(parser: ParserProcess) -> None:
    parsed(parser, body())
    first = parser.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    assert parsed(parser, body()) == RIGHT
    assert parser.pid != first
    assert not Path(f"/proc/{first}").exists(), "it is no zombie either"


def test_a_body_that_two_processes_die_of_is_refused_and_the_next_one_parsed(
    parser: ParserProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = module._start

    def start_dead() -> Any:
        process, connection = start()
        process.kill()
        process.wait()
        return process, connection

    monkeypatch.setattr(module, "_start", start_dead)
    with pytest.raises(Overloaded, match="ended twice while it parsed this one of"):
        parsed(parser, body())
    monkeypatch.setattr(module, "_start", start)
    assert parsed(parser, body()) == RIGHT


def test_no_process_to_be_had_is_an_overload(
    parser: ParserProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start() -> Any:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(module, "_start", start)
    with pytest.raises(Overloaded, match="no process can be started that parses long bodies"):
        parsed(parser, body())


def test_signals_to_the_group_are_not_for_it(parser: ParserProcess) -> None:
    parsed(parser, body())
    pid = parser.pid
    assert pid is not None
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        os.kill(pid, number)
    assert parsed(parser, body()) == RIGHT
    assert parser.pid == pid


def test_close_ends_the_process_and_the_body_that_it_parses() -> None:
    parser = ParserProcess()
    parsed(parser, body())
    pid = parser.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)  # the next body is never parsed
    ends: list[BaseException] = []

    def call() -> None:
        try:
            parsed(parser, body())
        except BaseException as exc:
            ends.append(exc)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    time.sleep(0.05)
    parser.close()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert [type(end) for end in ends] == [Overloaded]
    assert not Path(f"/proc/{pid}").exists()
    with pytest.raises(Overloaded, match="shutting down"):
        parsed(parser, body())


def test_it_ends_with_the_process_that_started_it() -> None:
    read_fd, write_fd = os.pipe()
    child = os.fork()
    if child == 0:
        parser = ParserProcess()
        parsed(parser, body())
        os.write(write_fd, str(parser.pid).encode())
        os.kill(os.getpid(), signal.SIGKILL)
    os.close(write_fd)
    pid = int(os.read(read_fd, 32))
    os.close(read_fd)
    os.waitpid(child, 0)
    until_s = time.monotonic() + PATIENCE_S
    while is_running(pid) and time.monotonic() < until_s:
        time.sleep(0.01)
    assert not is_running(pid)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
