"""HTTP over plain connections, for tests that count them, hang up, or watch the clock."""

from __future__ import annotations

import gzip
import http.client
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgpack
import numpy as np

from tests.process.pool_under_test import PATIENCE_S, Pool

DTYPES = {"INT64": "<i8", "INT32": "<i4", "FP32": "<f4"}
HEADER_LENGTH = "inference-header-content-length"


@dataclass(frozen=True)
class Answer:
    """One response; header names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def object(self) -> Any:
        """The JSON of an answer without binary parts."""
        return json.loads(self.body)

    @property
    def refused(self) -> tuple[int, str]:
        """(status, code) of an answer that is not 200."""
        return self.status, self.object["code"]


def ask(
    pool: Pool,
    path: str,
    body: bytes = b"",
    headers: Mapping[str, str] | None = None,
    *,
    method: str = "",
    source: str = "",
) -> Answer:
    """One request on a connection of its own; GET without a body, else POST. source: the address
    from which it comes."""
    place = (source, 0) if source else None
    connection = http.client.HTTPConnection(
        "127.0.0.1", pool.port, timeout=PATIENCE_S, source_address=place
    )
    try:
        connection.request(method or ("POST" if body else "GET"), path, body, dict(headers or {}))
        response = connection.getresponse()
        named = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, named, response.read())
    finally:
        connection.close()


def outputs(answer: Answer) -> dict[str, list[Any]]:
    """{name: values} of a 200 in the protocol's form, binary or not."""
    assert answer.status == 200, answer
    length = int(answer.headers.get(HEADER_LENGTH, len(answer.body)))
    found, at = {}, length
    for output in json.loads(answer.body[:length])["outputs"]:
        size = output.get("parameters", {}).get("binary_data_size")
        if size is None:
            found[output["name"]] = output["data"]
        elif output["datatype"] == "BYTES":
            found[output["name"]] = elements(answer.body[at : at + size])
            at += size
        else:
            raw = np.frombuffer(answer.body[at : at + size], DTYPES[output["datatype"]])
            found[output["name"]] = raw.reshape(output["shape"]).tolist()
            at += size
    assert at == len(answer.body), "bytes are left over, or missing"
    return found


def elements(raw: bytes) -> list[bytes]:
    """The elements of a binary BYTES tensor."""
    found = []
    while raw:
        size = int.from_bytes(raw[:4], "little")
        assert len(raw) >= 4 + size, "a cut element"
        found.append(raw[4 : 4 + size])
        raw = raw[4 + size :]
    return found


def json_body(name: str, rows: Any) -> bytes:
    """A request of rows of whole numbers for the input `name`."""
    array = np.asarray(rows, np.int64)
    tensor = {"name": name, "datatype": "INT64", "shape": list(array.shape)}
    return json.dumps({"inputs": [{**tensor, "data": array.ravel().tolist()}]}).encode()


def msgpack_body(name: str, rows: Any) -> bytes:
    array = np.asarray(rows, np.int64)
    form = {"dtype": "INT64", "shape": list(array.shape), "data": array.tobytes()}
    packed: bytes = msgpack.packb({"inputs": {name: form}})
    return packed


@dataclass(frozen=True)
class Road:
    """One way to send rows of whole numbers to a model's only input."""

    write: Callable[[str, Any], bytes]
    headers: Mapping[str, str] = field(default_factory=dict)

    def request(self, model: str, name: str, rows: Any, **fields: str) -> bytes:
        """The bytes of a whole request."""
        body = self.write(name, rows)
        given = {"Host": "pool", "Content-Length": f"{len(body)}", **self.headers, **fields}
        lines = [f"POST /v2/models/{model}/infer HTTP/1.1"]
        lines += [f"{key.replace('_', '-')}: {value}" for key, value in given.items()]
        return "\r\n".join([*lines, "", ""]).encode() + body

    def infer(self, pool: Pool, model: str, name: str, rows: Any, **fields: str) -> Answer:
        headers = {key.replace("_", "-"): value for key, value in fields.items()}
        path = f"/v2/models/{model}/infer"
        return ask(pool, path, self.write(name, rows), {**self.headers, **headers})


# The first three go the fast road inside the protocol; a compressed body goes through ASGI.
ROADS = {
    "json": Road(json_body),
    "raw": Road(lambda _, rows: np.asarray(rows, "<i8").tobytes(), {HEADER_LENGTH: "0"}),
    "msgpack": Road(msgpack_body, {"Content-Type": "application/msgpack"}),
    "gzip": Road(lambda *rows: gzip.compress(json_body(*rows)), {"Content-Encoding": "gzip"}),
}
