"""POST /v1/completions and /v1/chat/completions: prompts to sequences of the generator that the
body names, and their tokens to texts, in one answer or as events.

A stream's head goes out with its first event, so that what is refused before has its own status.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any

from starlette.types import Receive, Scope, Send

from batchpool.client.sequence_tokens import SequenceTokens
from batchpool.core.errors import InvalidInput, Moved, PoolError
from batchpool.core.tensors.dtypes import Array
from batchpool.core.tensors.rows import Rows
from batchpool.frontend.asgi.event_stream import EventStream, Pieces, event
from batchpool.frontend.asgi.openai_body import read_openai_request
from batchpool.frontend.asgi.sending import count_end, headers_of, send_response
from batchpool.frontend.asgi.sequence_text import SequenceText
from batchpool.frontend.asgi.text_sequences import Parts, Running, TextPart, TextSequences
from batchpool.frontend.http.memory_budget import MemoryReservation
from batchpool.frontend.http.request_body import RequestBody
from batchpool.frontend.http.request_context import caller_in, note
from batchpool.frontend.http.request_head import RequestHead
from batchpool.frontend.http.response import HttpResponse, error_response, ok_response
from batchpool.frontend.service.http_endpoint import HttpEndpoint
from batchpool.frontend.service.pool_view import PoolView
from batchpool.frontend.service.prompt_limits import ADVICE
from batchpool.wire.model_tables import json_fields
from batchpool.wire.openai_members import about_refused
from batchpool.wire.openai_texts import DONE, TextAnswer, Usage, WholeText
from batchpool.wire.request import InferRequest, header_priority, header_timeout_ns
from batchpool.wire.text_routes import TextRoute

Counted = Callable[[HttpResponse | None], None]

_LONG_PROMPT = 4096  # characters; fewer take at most two milliseconds of the loop


class Texts:
    """One of the two routes. discard_bytes: the most that is dropped of an unread body."""

    def __init__(self, view: PoolView, discard_bytes: int, route: TextRoute) -> None:
        self._view = view
        self._discard_bytes = discard_bytes
        self._route = route

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = headers_of(scope)
        request_body = RequestBody(receive, headers)
        head = RequestHead.of(headers, caller_in(scope))
        call = _TextCall(self._view, self._route, head, request_body)

        def count(end: HttpResponse | None) -> None:
            count_end(self._view.endpoints.metrics(call.model_name), end, scope, head.at_ns)

        response: HttpResponse | None
        try:
            response = await call.run(send, count)
        except Exception as exc:
            call.is_sent = False
            if isinstance(exc, InvalidInput):
                about_refused(self._route.member, exc)
            response = error_response(exc)
        if call.is_sent:
            return
        count(response)
        if response is not None:
            await send_response(response, request_body, send, self._discard_bytes)


class _TextCall:
    """One request. model_name: as the body has it, "" until that is read. is_sent: the response
    has been sent as events, and counted."""

    def __init__(
        self, view: PoolView, route: TextRoute, head: RequestHead, request_body: RequestBody
    ) -> None:
        self._view = view
        self._route = route
        self._head = head
        self._request_body = request_body
        self.model_name = ""
        self.is_sent = False

    async def run(self, send: Send, count: Counted) -> HttpResponse | None:
        """The response; None when the caller has gone. Raises what refuses the request, and what
        ends it before a first event. count: told of the end of events, before it is sent."""
        view, head = self._view, self._head
        head.priority = header_priority(head.headers)
        view.memory.check()
        # Counts the body, and then the prompts that wait for room.
        reservation = MemoryReservation(view.memory, head.flow)
        try:
            request = await read_openai_request(
                view,
                head,
                self._request_body,
                reservation,
                partial(self._route.read, most_tokens=view.openai.most_tokens),
                ADVICE,
                view.openai.most_text_bytes(self._route.most_prompts),
            )
            if request is None:
                return None
            sequences, begun, prompt_tokens = await self._submit(request, reservation)
            try:
                parts = sequences.parts(begun)
                answer = self._answer(request)
                if not request.options.stream:
                    return await self._whole(answer, sequences, parts, prompt_tokens)
                self.is_sent = True
                stream = EventStream(self._request_body, send, lost=sequences.cancel, ended=count)
                if sequences.count == 1:
                    _push_parts(answer, begun[0].text, stream)
                return await stream.run(_events(answer, sequences, parts, prompt_tokens))
            finally:
                sequences.cancel()
                note(tokens=sequences.completion_tokens)
        finally:
            reservation.release()

    def _answer(self, request: Any) -> TextAnswer:
        return TextAnswer(
            self._route.form,
            uuid.uuid4().hex,
            int(time.time()),
            request.model,
            with_usage=request.options.with_usage,
        )

    async def _submit(
        self, request: Any, reservation: MemoryReservation
    ) -> tuple[TextSequences, list[Running], int]:
        """The sequences, those of them that have begun, and how many tokens the prompts have."""
        view, flow = self._view, self._head.flow
        self.model_name = request.model
        while True:
            endpoint = view.openai.generator(request.model)
            note(model=endpoint.name)
            spec = endpoint.endpoint.facts.spec
            parameters = request.options.parameters(spec)
            text = await view.texts.find(spec)
            prompts: list[Array]
            if request.size > _LONG_PROMPT:
                prompts = await view.background.run(flow, self._route.prompts, text, request)
            else:
                prompts = self._route.prompts(text, request)
            note(rows=len(prompts))
            sequences = TextSequences(
                prompts,
                _Submission(
                    endpoint, self._head, partial(request.options.fitted, parameters)
                ).start,
                partial(text.generated, request.options.stops),
                reservation.release,
            )
            prompt_tokens = sum(map(len, prompts))
            try:
                return sequences, sequences.begin(), prompt_tokens
            except Moved:  # another generator has the name now, perhaps with another tokenizer
                sequences.cancel()
            except BaseException:
                sequences.cancel()
                raise

    async def _whole(
        self, answer: TextAnswer, sequences: TextSequences, parts: Parts, prompt_tokens: int
    ) -> HttpResponse | None:
        """The response with all texts; None when the caller has gone."""
        watch = asyncio.create_task(self._cancel_when_lost(sequences))
        found: list[list[str]] = [[] for _ in range(sequences.count)]
        reasons = [""] * sequences.count
        try:
            async with aclosing(parts):
                async for some in parts:
                    for part in some:
                        found[part.number].append(part.text)
                        reasons[part.number] = part.finish_reason
        except PoolError:
            if self._request_body.lost:
                return None
            raise
        finally:
            watch.cancel()
        if self._request_body.lost:
            return None
        texts = list(map(WholeText, map("".join, found), reasons))
        body = answer.whole(texts, Usage(prompt_tokens, sequences.completion_tokens))
        return ok_response(json_fields(len(body)), body)

    async def _cancel_when_lost(self, sequences: TextSequences) -> None:
        await self._request_body.until_lost()
        sequences.cancel()


class _Submission:
    """Submits the prompts of one request, each as a row of its own. fitted: the parameters of one,
    by the tokens that it leaves of the context."""

    def __init__(
        self, endpoint: HttpEndpoint, head: RequestHead, fitted: Callable[[int], dict[str, Any]]
    ) -> None:
        self._endpoint = endpoint
        self._head = head
        self._fitted = fitted
        self._timeout_ns = header_timeout_ns(head.headers)

    def start(self, prompt: Array) -> SequenceTokens:
        """Submit a prompt. Raises why it is refused, and Moved where another generator has the name
        now."""
        head, spec = self._head, self._endpoint.endpoint.facts.spec
        (tensor,) = spec.inputs
        # The longest prompt is that which leaves room for one token.
        parameters = self._fitted(tensor.max_shape[0] + 1 - len(prompt))
        rows = Rows(1, {tensor.name: prompt.astype(tensor.np_dtype)[None]}, parameters)
        request = InferRequest(None, rows, (), self._timeout_ns, head.priority, "openai")
        try:
            sequence = self._endpoint.stream(head, request)
        except Moved:
            after = self._endpoint.successor()
            if after.endpoint.facts.spec != spec:
                raise
            self._endpoint = after
            return self.start(prompt)
        head.admitted = True  # each later prompt has the model's limit for itself
        return sequence


def _push_parts(answer: TextAnswer, text: SequenceText, stream: EventStream) -> None:
    """Let the parts behind the first one of a lone text go out as soon as they are there."""

    def push(piece: str) -> None:
        stream.write_now(event(answer.part(0, piece)))

    text.push_to(lambda n: stream.may_write_now(), push)


async def _events(
    answer: TextAnswer, sequences: TextSequences, parts: Parts, prompt_tokens: int
) -> Pieces:
    """The events of a stream, those of one moment together."""
    async with aclosing(parts):
        async for some in parts:
            if piece := b"".join(map(event, _contents(answer, some))):
                yield piece
    if sequences.given_up:
        return
    contents = [DONE]
    if answer.with_usage:
        contents.insert(0, answer.usage(Usage(prompt_tokens, sequences.completion_tokens)))
    yield b"".join(map(event, contents))


def _contents(answer: TextAnswer, parts: Sequence[TextPart]) -> Iterator[bytes]:
    for part in parts:
        if part.is_first and (first := answer.first(part.number)):
            yield first
        if part.text:
            yield answer.part(part.number, part.text)
        if part.finish_reason:
            yield answer.last(part.number, part.finish_reason)
