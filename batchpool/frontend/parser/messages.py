"""The messages between a front end and its parser process.

The front end sends a `ParseJob` and the body; the process replies with a `Parsed`, behind which
each array of numbers follows as it is, or with a `Refused` or a `Failed`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from multiprocessing.connection import Connection
from typing import Any

import msgspec
import numpy as np

from batchpool.core.errors import PoolError, all_errors
from batchpool.core.tensors.dtypes import Array
from batchpool.core.tensors.rows import Rows
from batchpool.core.tensors.spec import ModelSpec
from batchpool.wire.request import Body, InferRequest, OutputChoice, PlainAnswer

_ERRORS = {kind.__name__: kind for kind in all_errors()}


class ParseJob(msgspec.Struct, frozen=True):
    """The model and the headers of a body. spec: `ModelSpec.to_wire`, encoded."""

    spec: bytes
    headers: dict[bytes, bytes]


class ArrayForm(msgspec.Struct, frozen=True):
    """One array. elements: of an array of bytes; the numbers of any other follow the message."""

    name: str
    shape: list[int]
    elements: list[bytes] | None


class Parsed(msgspec.Struct, frozen=True, tag=True):
    """An `InferRequest`."""

    id: str | None
    n: int
    tensors: list[ArrayForm]
    sizes: list[ArrayForm]
    parameters: dict[str, Any]
    outputs: list[tuple[str, bool, int]]
    timeout_ns: int | None
    priority: int
    form: str
    plain: PlainAnswer | None


class Refused(msgspec.Struct, frozen=True, tag=True):
    """The error of the body. kind: the name of its class."""

    kind: str
    message: str


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The traceback of an exception that is no `PoolError`: a mistake of the parser."""

    traceback: str


_JOB = msgspec.msgpack.Decoder(ParseJob)
_REPLY = msgspec.msgpack.Decoder(Parsed | Refused | Failed)


def encoded_spec(spec: ModelSpec) -> bytes:
    """The `spec` of a `ParseJob`."""
    return msgspec.msgpack.encode(spec.to_wire())


def decoded_spec(raw: bytes) -> ModelSpec:
    """The model of a `ParseJob`."""
    return ModelSpec.from_wire(msgspec.msgpack.decode(raw))


def send_job(connection: Connection, job: ParseJob, body: Body) -> None:
    """Send a body to parse."""
    connection.send_bytes(msgspec.msgpack.encode(job))
    connection.send_bytes(body)


def receive_job(connection: Connection) -> tuple[ParseJob, bytes]:
    """The next body to parse. EOFError once the front end has gone."""
    return _JOB.decode(connection.recv_bytes()), connection.recv_bytes()


def send_request(connection: Connection, request: InferRequest) -> None:
    """Send what was parsed."""
    rows = request.rows
    reply = Parsed(
        id=request.id,
        n=rows.n,
        tensors=[_form(name, array) for name, array in rows.tensors.items()],
        sizes=[_form(name, array) for name, array in rows.sizes.items()],
        parameters=rows.parameters,
        outputs=[(choice.name, choice.binary, choice.classes) for choice in request.outputs],
        timeout_ns=request.timeout_ns,
        priority=request.priority,
        form=request.form,
        plain=request.plain,
    )
    connection.send_bytes(msgspec.msgpack.encode(reply))
    for array in (*rows.tensors.values(), *rows.sizes.values()):
        if array.dtype != object:
            flat = np.ascontiguousarray(array).reshape(-1)
            connection.send_bytes(flat.view(np.uint8).data)


def _form(name: str, array: Array) -> ArrayForm:
    elements = array.reshape(-1).tolist() if array.dtype == object else None
    return ArrayForm(name, list(array.shape), elements)


def send_error(connection: Connection, error: PoolError) -> None:
    """Send why a body is refused."""
    connection.send_bytes(msgspec.msgpack.encode(Refused(type(error).__name__, error.message)))


def send_failure(connection: Connection, traceback: str) -> None:
    """Send the traceback of a mistake of the parser."""
    connection.send_bytes(msgspec.msgpack.encode(Failed(traceback)))


def receive_reply(connection: Connection, spec: ModelSpec) -> InferRequest | Exception:
    """The parsed request, whose arrays are read-only, or the error to raise."""
    reply = _REPLY.decode(connection.recv_bytes())
    if isinstance(reply, Refused):
        return _ERRORS[reply.kind](reply.message)
    if isinstance(reply, Failed):
        return RuntimeError(f"a long body could not be parsed:\n{reply.traceback}")
    dtypes = {tensor.name: tensor.np_dtype for tensor in spec.inputs}
    tensors = dict(_arrays(connection, reply.tensors, dtypes))
    sizes = dict(_arrays(connection, reply.sizes, dict.fromkeys(dtypes, np.dtype(np.int64))))
    return InferRequest(
        reply.id,
        Rows(reply.n, tensors, reply.parameters, sizes),
        tuple(OutputChoice(*choice) for choice in reply.outputs),
        reply.timeout_ns,
        reply.priority,
        reply.form,
        reply.plain,
    )


def _arrays(
    connection: Connection, forms: list[ArrayForm], dtypes: Mapping[str, np.dtype[Any]]
) -> Iterator[tuple[str, Array]]:
    for form in forms:
        if form.elements is None:
            raw = np.frombuffer(connection.recv_bytes() or b"\0", np.uint8)
            size = int(np.prod(form.shape)) * dtypes[form.name].itemsize
            array = raw[:size].view(dtypes[form.name])
        else:
            array = np.empty(len(form.elements), dtype=object)
            array[:] = form.elements
        yield form.name, array.reshape(form.shape)
