"""POST /v2/models/M/generate and /generate_stream: a prompt to its tokens, whole or as they come.

The body is that of an infer request of one row, in any of its forms, or a prompt as text, and is
checked, admitted and counted as one. The answer is JSON: one object, or an event for each part; of
tokens, or of text where the prompt was one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from starlette.types import Receive, Scope, Send

from batchpool.client.pending_request import PendingRequest
from batchpool.client.reply import Reply
from batchpool.client.running_sequence import RunningSequence
from batchpool.client.stream_call import require_generator
from batchpool.core.errors import InvalidRequest, PoolError
from batchpool.core.tensors.dtypes import Array
from batchpool.frontend.asgi.event_stream import EventStream, Pieces, event
from batchpool.frontend.asgi.infer import Submitted, finished, submitted
from batchpool.frontend.asgi.prompt_reader import PromptReader
from batchpool.frontend.asgi.sending import count_end, headers_of, send_response
from batchpool.frontend.asgi.sequence_text import SequenceText
from batchpool.frontend.http.request_body import RequestBody
from batchpool.frontend.http.request_context import caller_in, note
from batchpool.frontend.http.request_head import RequestHead
from batchpool.frontend.http.response import HttpResponse, error_response, ok_response
from batchpool.frontend.service.http_endpoint import VERSION, HttpEndpoint
from batchpool.frontend.service.pool_view import PoolView
from batchpool.wire.generation import GenerationAnswers
from batchpool.wire.model_tables import json_fields
from batchpool.wire.request import InferRequest

Counted = Callable[[HttpResponse | None], None]

_MOST_ID = 256
_LONG_VALUES = 16 * 1024  # which take some milliseconds to write


class Generate:
    """One of both routes. discard_bytes: the most that is dropped of an unread body. streams: the
    tokens go out as they come."""

    def __init__(self, view: PoolView, discard_bytes: int, *, streams: bool) -> None:
        self._view = view
        self._discard_bytes = discard_bytes
        self._streams = streams

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = headers_of(scope)
        request_body = RequestBody(receive, headers)
        parameters = scope["path_params"]
        model = parameters["model"]
        head = RequestHead.of(headers, caller_in(scope))

        def count(end: HttpResponse | None) -> None:
            # The counters as they are now: a reload may have moved them since the request began.
            count_end(self._view.endpoints.metrics(model), end, scope, head.at_ns)

        response: HttpResponse | None
        try:
            endpoint = self._view.endpoints.find(model, parameters.get("version", VERSION))
            note(model=model)
            reader = PromptReader(self._view.texts, streams=self._streams)
            generation = _Generation(self._view, endpoint, head, request_body, reader)
            if self._streams:
                await generation.stream(send, count)
                return
            response = await generation.whole()
        except Exception as exc:
            response = error_response(exc)
        count(response)
        if response is not None:
            await send_response(response, request_body, send, self._discard_bytes)


class _Generation:
    """One request."""

    def __init__(
        self,
        view: PoolView,
        endpoint: HttpEndpoint,
        head: RequestHead,
        request_body: RequestBody,
        reader: PromptReader,
    ) -> None:
        require_generator(endpoint.endpoint.facts.spec)
        self._view = view
        self._endpoint = endpoint
        self._head = head
        self._request_body = request_body
        self._reader = reader

    async def whole(self) -> HttpResponse | None:
        """The answer with all tokens; None when the caller has gone. Raises what refuses it."""
        done = Reply()
        found = await self._submitted(partial(self._submit, done))
        if found is None:
            return None
        endpoint, request, pending = found
        if isinstance(pending, RunningSequence):
            return await self._whole_text(endpoint.generation_answers, request, pending)
        try:
            if not await finished(endpoint, pending, done, self._request_body):
                return None
        finally:
            del done  # it may hold the error that is raised, whose traceback refers to it
        tokens, reasons = endpoint.endpoint.fetch(pending).values()
        note(tokens=tokens.shape[1])
        answers = endpoint.generation_answers
        body = await self._written(answers, request, tokens[0], reasons[0].decode())
        return ok_response(json_fields(len(body)), body)

    def _submit(
        self, done: Reply, endpoint: HttpEndpoint, request: InferRequest
    ) -> PendingRequest | RunningSequence:
        if self._reader.generated is not None:  # which may end at a stop string
            return endpoint.stream(self._head, request)
        return endpoint.submit_prompt(self._head, request, done)

    async def _whole_text(
        self, answers: GenerationAnswers, request: InferRequest, sequence: RunningSequence
    ) -> HttpResponse | None:
        watch = asyncio.create_task(self._cancel_when_lost(sequence))
        text, pieces = self._text_of(sequence), list[str]()
        try:
            while (piece := await text.next_piece()) is not None:
                pieces.append(piece)
        except PoolError:
            if not self._request_body.lost:
                raise
        finally:
            watch.cancel()
            sequence.cancel()
            note(tokens=text.n_tokens)
        if self._request_body.lost:
            return None
        body = answers.text_answer(request.id, "".join(pieces), text.finish_reason)
        return ok_response(json_fields(len(body)), body)

    async def _cancel_when_lost(self, sequence: RunningSequence) -> None:
        await self._request_body.until_lost()
        sequence.cancel()

    async def stream(self, send: Send, count: Counted) -> None:
        """Send the tokens as events. count: told of the end, before it is sent. Raises what ends
        the request before its first token; then nothing was sent."""
        found = await self._submitted(self._follow)
        if found is None:
            count(None)
            return
        endpoint, request, sequence = found
        answers, name = endpoint.generation_answers, request.id
        try:
            events = EventStream(self._request_body, send, lost=sequence.cancel, ended=count)
            if self._reader.generated is None:

                def may_push(n: int) -> bool:
                    return n * answers.values_each <= _LONG_VALUES and events.may_write_now()

                def push(new: Array) -> None:
                    events.write_now(event(answers.answer(name, new, None)))

                sequence.push_to(may_push, push)
                pieces = self._pieces(answers, request, sequence)
            else:

                def push_text(piece: str) -> None:
                    events.write_now(event(answers.text_answer(name, piece, None)))

                text = self._text_of(sequence)
                text.push_to(lambda n: events.may_write_now(), push_text)
                pieces = _text_pieces(answers, name, text)
            await events.run(pieces)
        finally:
            sequence.cancel()
            note(tokens=sequence.n_tokens)

    def _follow(self, endpoint: HttpEndpoint, request: InferRequest) -> RunningSequence:
        if request.id is not None and len(request.id) > _MOST_ID:
            raise InvalidRequest(
                f"the request's id has {len(request.id)} characters; at most {_MOST_ID} are taken"
                " here, since every event bears it"
            )
        return endpoint.stream(self._head, request)

    def _text_of(self, sequence: RunningSequence) -> SequenceText:
        assert self._reader.generated is not None, "a prompt of tokens"
        return SequenceText(sequence, self._reader.generated)

    async def _submitted(
        self, submit: Callable[[HttpEndpoint, InferRequest], Submitted]
    ) -> tuple[HttpEndpoint, InferRequest, Submitted] | None:
        view, head, request_body = self._view, self._head, self._request_body
        return await submitted(
            self._endpoint,
            head,
            request_body,
            view.background,
            view.memory,
            submit,
            self._reader.read,
            one_prompt=True,
        )

    async def _pieces(
        self, answers: GenerationAnswers, request: InferRequest, sequence: RunningSequence
    ) -> Pieces:
        told = False  # the reason, with the last tokens
        while (tokens := await sequence.next_tokens()) is not None:
            told = sequence.finish_reason is not None
            yield event(await self._written(answers, request, tokens, sequence.finish_reason))
        if not told and sequence.finish_reason is not None:
            none = sequence.tokens[:0]
            yield event(answers.answer(request.id, none, sequence.finish_reason))

    async def _written(
        self, answers: GenerationAnswers, request: InferRequest, tokens: Array, reason: str | None
    ) -> bytes:
        write = partial(answers.answer, request.id, tokens, reason)
        if tokens.size <= _LONG_VALUES:
            return write()
        return await self._view.background.run(self._head.flow, write)


async def _text_pieces(
    answers: GenerationAnswers, request_id: str | None, text: SequenceText
) -> Pieces:
    while (piece := await text.next_piece()) is not None:
        if piece or text.finish_reason is not None:
            yield event(answers.text_answer(request_id, piece, text.finish_reason))
