"""HTTP endpoints: work that belongs into a thread, and requests that nobody waits for any more."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections import Counter
from typing import Any
from zlib import crc32

import msgspec
import numpy as np
import pytest

from batchpool.client.pending_request import PendingRequest
from batchpool.client.reply import Reply
from batchpool.core.errors import Cancelled, InvalidRequest, Overloaded
from batchpool.core.flows import origin_of
from batchpool.frontend.http.caller import Caller, flow_of
from batchpool.frontend.http.request_head import RequestHead
from batchpool.frontend.service.http_endpoint import HttpEndpoint
from batchpool.wire.request import InferRequest, OutputChoice
from tests.unit.frontend.calls import affine, packed
from tests.unit.frontend.frontend_double import Edge, edge
from tests.unit.frontend.loops import on_loop, until
from tests.unit.frontend.models import Affine, Echo, Wide

KIB = 1024
LENGTH = b"inference-header-content-length"


def head_of(**headers: str) -> RequestHead:
    fields = {name.replace("_", "-").encode(): text.encode() for name, text in headers.items()}
    return RequestHead.of(fields, Caller("peer"))


def checked(endpoint: HttpEndpoint, **headers: str) -> RequestHead:
    head = head_of(**headers)
    endpoint.check_head(head)
    return head


def admit(endpoint: HttpEndpoint, **headers: str) -> None:
    endpoint.admit(checked(endpoint, **headers))


def asked(endpoint: HttpEndpoint, rows: int = 1) -> InferRequest:
    return endpoint.parse(checked(endpoint), json.dumps(affine(*range(rows))).encode())


@pytest.mark.parametrize(
    ("model", "headers", "size", "expected"),
    [
        ("affine", {}, 200 * KIB, False),
        ("affine", {}, 300 * KIB, True),
        ("affine", {"inference_header_content_length": "100"}, 9000 * KIB, False),
        ("affine", {"inference_header_content_length": "0"}, 9000 * KIB, False),
        ("affine", {"inference_header_content_length": "400000"}, 9000 * KIB, True),
        ("affine", {"content_type": "application/msgpack"}, 9000 * KIB, True),
        ("affine", {"content_type": "application/vnd.apache.arrow.stream"}, 32 * KIB, False),
        ("affine", {"content_type": "application/vnd.apache.arrow.stream"}, 33 * KIB, True),
        ("affine", {"content_encoding": "gzip"}, 254, False),
        ("affine", {"content_encoding": "gzip"}, 255, True),
        ("echo", {"inference_header_content_length": "100"}, 300 * KIB, True),
        ("echo", {"inference_header_content_length": "100"}, 200 * KIB, False),
    ],
)
@on_loop
async def test_parses_long(model: str, headers: dict[str, str], size: int, expected: bool) -> None:
    async with edge(Affine, Echo, slots=8) as it:
        endpoint = it.view.endpoints.find(model)
        assert endpoint.parses_long(checked(endpoint, **headers), size) is expected


@on_loop
async def test_large_bodies_of_arrow_are_read_in_the_thread() -> None:
    """160 KB of nothing but heads of messages held the loop for 28 ms."""
    pa = pytest.importorskip("pyarrow")
    x = pa.array([[1.0] * 4] * 8, pa.list_(pa.float32(), 4))
    table = pa.table({"x": x}).replace_schema_metadata({"filler": "a" * (2 << 20)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    async with edge(Affine, slots=8, server={"max_body_mib": 16}) as it:
        endpoint = it.view.endpoints.find("affine")
        head = checked(endpoint, content_type="application/vnd.apache.arrow.stream")
        body = sink.getvalue().to_pybytes()
        assert endpoint.parses_long(head, len(body))
        request = await it.view.background.run(1, endpoint.parse_long, head, body)
        assert request.rows.n == 8


@pytest.mark.parametrize("encoding", ["plain", "gzip"])
@on_loop
async def test_text_of_more_than_a_megabyte_is_parsed_by_another_process(encoding: str) -> None:
    """C30: a large JSON body does not hold the loop."""
    async with edge(Wide, slots=8, server={"max_body_mib": 16}) as it:
        endpoint = it.view.endpoints.find("wide")
        head = checked(endpoint, **({} if encoding == "plain" else {"content_encoding": "gzip"}))
        binary = checked(endpoint, inference_header_content_length="0")
        assert endpoint.parse_long(binary, bytes(1 << 20)).rows.n == 1
        assert it.parser.pid is None, "binary tensors are only looked at"
        values = np.arange(1 << 20, dtype=np.uint8)
        x = {"name": "x", "shape": [1, 1 << 20], "datatype": "UINT8", "data": values.tolist()}
        body = json.dumps({"inputs": [x]}).encode()
        sent = body if encoding == "plain" else gzip.compress(body, 1)
        request = endpoint.parse_long(head, sent)
        assert it.parser.pid is not None
        assert np.array_equal(request.rows.tensors["x"], values[np.newaxis])


@on_loop
async def test_msgpack_of_many_values_is_parsed_by_another_process() -> None:
    """A byte may be a value: reading them would hold the loop, wherever it is done here."""
    async with edge(Wide, slots=8, server={"max_body_mib": 16}) as it:
        endpoint = it.view.endpoints.find("wide")
        head = checked(endpoint, content_type="application/msgpack")
        tensor = {"dtype": "UINT8", "shape": [1, 1 << 20], "data": bytes(1 << 20)}
        body = msgspec.msgpack.encode({"inputs": {"x": tensor}})
        assert endpoint.parses_long(head, len(body))
        assert endpoint.parse_long(head, body).rows.n == 1
        assert it.parser.pid is None, "a tensor is only looked at"
        wrong = msgspec.msgpack.encode({"inputs": {"x": {**tensor, "data": [0] * (2 << 20)}}})
        with pytest.raises(InvalidRequest, match="data"):
            endpoint.parse_long(head, wrong)
        assert it.parser.pid is not None


@on_loop
async def test_text_below_a_megabyte_needs_no_process() -> None:
    async with edge(Affine, slots=8) as it:
        endpoint = it.view.endpoints.find("affine")
        body = json.dumps(affine(*range(4000))).encode()
        assert endpoint.parse_long(checked(endpoint), body).rows.n == 4000
        assert it.parser.pid is None


@on_loop
async def test_encodes_long() -> None:
    async with edge(Affine, Wide, slots=8, server={"max_body_mib": 16}) as it:
        endpoint = it.view.endpoints.find("affine")
        request = asked(endpoint)
        assert not endpoint.encodes_long(head_of(), request, 4096)
        assert endpoint.encodes_long(head_of(), request, 4097)
        endpoint = it.view.endpoints.find("wide")
        raw = endpoint.parse(checked(endpoint, inference_header_content_length="0"), bytes(1 << 20))
        assert not endpoint.encodes_long(head_of(), raw, 8)
        assert endpoint.encodes_long(head_of(accept_encoding="gzip"), raw, 8)


@pytest.mark.parametrize("binary", [True, False])
@on_loop
async def test_many_classes_are_encoded_long(binary: bool) -> None:
    async with edge(Affine, slots=8) as it:
        endpoint = it.view.endpoints.find("affine")
        request = asked(endpoint)
        request.outputs = (OutputChoice("y", binary, 3),)
        assert not endpoint.encodes_long(head_of(), request, 315)
        assert endpoint.encodes_long(head_of(), request, 316)  # 4 values and 3 texts a row


@on_loop
async def test_admit_claims_nothing_and_counts_refusals_only() -> None:
    async with edge(Affine, slots=8) as it:
        endpoint = it.view.endpoints.find("affine")
        for _ in range(100):
            admit(endpoint)
        assert (
            endpoint.lane_client.allocator.claimed,
            endpoint.lane_client.lane.refused.get(),
        ) == (0, 0)


@on_loop
async def test_admit_asks_for_the_flow_at_the_priority_in_the_header() -> None:
    async with edge(Affine, slots=20) as it:
        endpoint = it.view.endpoints.find("affine")
        slots = endpoint.lane_client.allocator
        bulk, other = (checked(endpoint, x_client_id=name) for name in ("bulk", "other"))
        slots.take(9, bulk.flow)
        slots.take(9, other.flow)
        with pytest.raises(Overloaded, match="this flow holds 9 of 20 slots"):
            endpoint.admit(bulk)
        assert not slots.shut
        newcomer = {"x_client_id": "newcomer"}
        with pytest.raises(Overloaded, match="18 of 20 slots are in use"):
            admit(endpoint, **newcomer)
        admit(endpoint, **newcomer, x_request_priority="127")
        for text in ("0", "128", "255"):
            with pytest.raises(Overloaded):
                admit(endpoint, **newcomer, x_request_priority=text)
        with pytest.raises(InvalidRequest, match="X-Request-Priority"):
            admit(endpoint, **newcomer, x_request_priority="256")
        assert slots.claimed == 18


def test_callers_are_flows_by_their_names_or_addresses() -> None:
    names = [b"alice", b"bob", b""]
    flows = [RequestHead.of({b"x-client-id": name}, Caller("10.0.0.1")).flow for name in names]
    assert len({*flows, crc32(b"alice"), crc32(b"bob")}) == 5
    spoof = RequestHead.of({b"x-client-id": b"10.0.0.1"}, Caller("10.0.0.9")).flow
    assert spoof != flows[2], "who takes another's address as a name does not take its share"
    assert flows[2] == RequestHead.of({}, Caller("10.0.0.1")).flow == flow_of(b"10.0.0.1")
    assert [origin_of(flow) for flow in flows] == [flows[2]] * 3
    assert RequestHead.of({b"x-client-id": b"bob"}, Caller("10.0.0.9")).flow != flows[1]
    assert RequestHead.of({}, Caller("")).flow == 1, "0 would be a client without flows"


def submitted(endpoint: HttpEndpoint, request: InferRequest) -> tuple[PendingRequest, Reply]:
    reply = Reply()
    return endpoint.submit(checked(endpoint), request, request.rows, reply), reply


@on_loop
async def test_submit_gives_the_rows_away() -> None:
    async with edge(Affine, slots=8) as it:
        endpoint = it.view.endpoints.find("affine")
        request = asked(endpoint, 2)
        pending, reply = submitted(endpoint, request)
        assert request.rows.tensors == {}
        await reply
        outputs = endpoint.fetch(request, pending)
        assert np.array_equal(outputs["y"], np.repeat([[1.0], [3.0]], 4, axis=1))
        assert endpoint.lane_client.allocator.claimed == 0


@on_loop
async def test_leaving_while_it_is_under_way() -> None:
    async with edge(Affine, slots=8) as it:
        it.pool.hold = True
        endpoint = it.view.endpoints.find("affine")
        pending, reply = submitted(endpoint, asked(endpoint))
        endpoint.endpoint.cancel(pending, reply)
        with pytest.raises(Cancelled):
            await reply
        it.pool.release()
        await until(lambda: endpoint.lane_client.allocator.claimed == 0, "the slot is free")


@on_loop
async def test_leaving_when_it_is_done_changes_nothing() -> None:
    async with edge(Affine, slots=8) as it:
        endpoint = it.view.endpoints.find("affine")
        request = asked(endpoint)
        pending, reply = submitted(endpoint, request)
        await until(reply.done, "it is done")
        endpoint.endpoint.cancel(pending, reply)
        assert await reply is pending
        assert endpoint.fetch(request, pending)["y"].shape == (1, 4)


@pytest.mark.parametrize("far", ["under way", "done", "cancelled"])
@on_loop
async def test_forgetting_frees_the_slots_however_far_it_is(far: str) -> None:
    async with edge(Affine, slots=8) as it:
        it.pool.hold = far != "done"
        endpoint = it.view.endpoints.find("affine")
        pending, reply = submitted(endpoint, asked(endpoint))
        if far == "done":
            await until(reply.done, "it is done")
        if far == "cancelled":
            reply.cancel()
        assert endpoint.lane_client.allocator.claimed == 1
        endpoint.endpoint.discard(pending, reply)
        it.pool.release()
        await until(lambda: endpoint.lane_client.allocator.claimed == 0, "the slot is free")


async def infer_task(it: Edge) -> asyncio.Task[Any]:
    task = asyncio.create_task(it.http.post("/v2/models/affine/infer", json=affine(1)))
    await until(lambda: it.pool.lane_client("affine").allocator.claimed == 1, "it is under way")
    return task


@on_loop
async def test_a_cancelled_task_leaves_nothing_behind() -> None:
    async with edge(Affine, slots=8) as it:
        it.pool.hold = True
        task = await infer_task(it)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        it.pool.release()
        await until(
            lambda: it.pool.lane_client("affine").allocator.claimed == 0, "the slot is free"
        )


@pytest.mark.interpreted
@on_loop
async def test_a_task_cancelled_in_the_moment_of_its_answer() -> None:
    async with edge(Affine, slots=8) as it:
        it.pool.hold = True
        task = await infer_task(it)
        reap = it.client_loop._reap

        def reap_and_cancel() -> None:
            reap()
            if it.pool.lane_client("affine").in_flight() == []:
                task.cancel()  # the reply is set, the task has not run since

        it.client_loop._reap = reap_and_cancel  # type: ignore[method-assign]
        it.pool.release()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert it.pool.lane_client("affine").allocator.claimed == 0


class CountingHeaders(dict[bytes, bytes]):
    """Headers that count how often each is read."""

    def __init__(self, fields: dict[bytes, bytes]) -> None:
        super().__init__(fields)
        self.reads: Counter[bytes] = Counter()

    def get(self, name: bytes, default: Any = None) -> Any:
        self.reads[name] += 1
        return super().get(name, default)


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ({LENGTH: b"0"}, bytes(16)),
        ({b"content-type": b"application/json"}, json.dumps(affine(1)).encode()),
        (
            {b"content-type": b"application/msgpack"},
            packed({"inputs": {"x": {"dtype": "FP32", "shape": [1, 4], "data": bytes(16)}}}),
        ),
    ],
)
@on_loop
async def test_form_and_priority_are_read_from_the_headers_once(
    headers: dict[bytes, bytes], body: bytes, whole: bool
) -> None:
    async with edge(Affine, slots=8) as it:
        endpoint = it.view.endpoints.find("affine")
        fields = CountingHeaders({b"x-request-priority": b"3", **headers})
        head = RequestHead.of(fields, Caller("peer"))
        endpoint.check_head(head)
        if not whole:
            endpoint.admit(head)
        request = endpoint.parse(head, body)
        reply = Reply()
        pending = endpoint.submit(head, request, request.rows, reply)
        assert (request.priority, head.admitted) == (3, not whole)
        assert fields.reads[b"x-request-priority"] == 1
        assert fields.reads[b"content-type"] == 1
        await reply
        assert list(endpoint.fetch(request, pending)) == ["y"]
