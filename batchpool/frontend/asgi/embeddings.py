"""POST /v1/embeddings: texts to rows of the model that the body names, and its vectors back.

The steps are those of an infer request but for two: the lane is not asked before the body is there,
which alone names the model; and more rows than the lane lets one caller have go in windows.
"""

from __future__ import annotations

from functools import partial

from starlette.types import Receive, Scope, Send

from batchpool.core.errors import InvalidInput, Moved
from batchpool.frontend.asgi.openai_body import read_openai_request
from batchpool.frontend.asgi.sending import checked, count_end, headers_of, send_response
from batchpool.frontend.asgi.windows import Windows
from batchpool.frontend.http.memory_budget import MemoryReservation
from batchpool.frontend.http.request_body import RequestBody
from batchpool.frontend.http.request_context import caller_in, note
from batchpool.frontend.http.request_head import RequestHead
from batchpool.frontend.http.response import HttpResponse, error_response, ok_response
from batchpool.frontend.service.pool_view import PoolView
from batchpool.wire.embeddings import EmbeddingRequest, embedding_answer, read_embedding_request
from batchpool.wire.model_tables import json_fields
from batchpool.wire.openai import INPUT
from batchpool.wire.openai_members import about_refused
from batchpool.wire.request import (
    InferRequest,
    OutputChoice,
    header_priority,
    header_timeout_ns,
)

# Work below these sizes takes at most a few milliseconds of the loop.
_LONG_FLOATS = 16 * 1024  # values that are written as JSON
_LONG_BASE64 = 256 * 1024  # values


class Embeddings:
    """The route of one front end. discard_bytes: the most that is dropped of an unread body."""

    def __init__(self, view: PoolView, discard_bytes: int) -> None:
        self._view = view
        self._discard_bytes = discard_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = headers_of(scope)
        request_body = RequestBody(receive, headers)
        head = RequestHead.of(headers, caller_in(scope))
        call = _EmbeddingCall(self._view, head, request_body)
        response: HttpResponse | None
        try:
            response = checked(await call.run())
        except Exception as exc:
            if isinstance(exc, InvalidInput):
                about_refused(INPUT, exc)
            response = error_response(exc)
        metrics = self._view.endpoints.metrics(call.model_name)
        count_end(metrics, response, scope, head.at_ns)
        if response is not None:
            await send_response(response, request_body, send, self._discard_bytes)


class _EmbeddingCall:
    """One request. model_name: as the body has it, "" until that is read."""

    def __init__(self, view: PoolView, head: RequestHead, request_body: RequestBody) -> None:
        self._view = view
        self._head = head
        self._request_body = request_body
        self.model_name = ""

    async def run(self) -> HttpResponse | None:
        """The response; None when the caller has gone. Raises what refuses the request."""
        view, flow = self._view, self._head.flow
        self._head.priority = header_priority(self._head.headers)
        view.memory.check()
        reservation = MemoryReservation(view.memory, flow)
        try:
            request = await read_openai_request(
                view,
                self._head,
                self._request_body,
                reservation,
                read_embedding_request,
                "send fewer texts at a time",
            )
            return None if request is None else await self._answer(request)
        finally:
            reservation.release()

    async def _answer(self, request: EmbeddingRequest) -> HttpResponse | None:
        headers, view = self._head.headers, self._view
        self.model_name = request.model
        while True:
            endpoint, model = view.openai.embedding(request.model)
            rows = model.rows(request)
            note(model=endpoint.name, rows=rows.n)
            names = model.outputs
            choices = tuple(OutputChoice(name, True) for name in names)
            timeout_ns, priority = header_timeout_ns(headers), self._head.priority
            asked = InferRequest(None, rows, choices, timeout_ns, priority, "openai")
            windows = Windows(endpoint, self._head, asked, names, self._request_body)
            try:
                outputs = await windows.outputs()
                break
            except Moved:
                if self._head.admitted:
                    raise  # rows have run at the old tensors: the caller is to come again
        if outputs is None:
            return None
        values = len(request.texts) * model.dimensions
        encode = partial(embedding_answer, model, outputs, binary=request.binary)
        if values > (_LONG_BASE64 if request.binary else _LONG_FLOATS):
            body = await view.background.run(self._head.flow, encode)
        else:
            body = encode()
        return ok_response(json_fields(len(body)), body)
