"""The calls of a batch's lines: the body of a request at its endpoint to the body of its answer.

The steps are those of the front end's routes, taken by a local client of the pool: the same readers
of the same bodies, behind every interactive request.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Sequence
from typing import Protocol

from batchpool.batches.texts import BatchTexts
from batchpool.client.aio_driver import LoopDriver
from batchpool.client.async_token_stream import AsyncTokenStream
from batchpool.client.call import Call
from batchpool.client.infer import infer
from batchpool.client.stream_call import StreamCall
from batchpool.core.errors import InternalError, InvalidInput, InvalidRequest, NotFound
from batchpool.core.priority import BACKGROUND
from batchpool.core.tensors.dtypes import Array
from batchpool.core.tensors.spec import ModelSpec
from batchpool.text.text_model import TextModel
from batchpool.wire.embeddings import embedding_answer, embedding_model, read_embedding_request
from batchpool.wire.openai import INPUT
from batchpool.wire.openai_members import about, about_refused
from batchpool.wire.openai_texts import TextAnswer, Usage, WholeText
from batchpool.wire.request import brief
from batchpool.wire.text_routes import TEXT_ROUTES, TextRoute, check_makes_texts

_LONG_FLOATS = 16 * 1024  # values that are written as JSON; fewer take a few milliseconds
_LONG_PROMPT = 4096  # characters; fewer take at most two milliseconds of the loop
_LONG_BODY_BYTES = 256 * 1024
_NAMES_FOR_S = 1.0  # so long a model that is not served is not asked for again


class LineCalls(Protocol):
    """Answers requests of batches."""

    async def answer(self, endpoint: str, body: bytes) -> bytes:
        """The JSON of the answer to a body at an endpoint. Raises why there is none."""


class PoolLineCalls:
    """The calls at a pool. driver: its local client."""

    def __init__(self, driver: LoopDriver) -> None:
        self._driver = driver
        self._texts = BatchTexts()
        self._names: frozenset[str] = frozenset()
        self._names_at_s = -_NAMES_FOR_S
        self._looking = asyncio.Lock()

    async def answer(self, endpoint: str, body: bytes) -> bytes:
        """As of `LineCalls`."""
        route = TEXT_ROUTES.get(endpoint)
        member = INPUT if route is None else route.member
        try:
            if route is None:
                return await self._embeddings(body)
            return await self._generation(route, body)
        except InvalidInput as exc:  # which the model has refused
            raise about_refused(member, exc) from None

    async def _spec(self, model: str) -> ModelSpec:
        """The tensors of a model. NotFound where there is none, which costs the pool little however
        many lines ask for it."""
        if model not in self._names:
            async with self._looking:
                if time.monotonic() - self._names_at_s >= _NAMES_FOR_S:
                    self._names = frozenset(await self._driver.models())
                    self._names_at_s = time.monotonic()
        if model not in self._names:
            raise about("model", NotFound(f"there is no model {brief(model)}"))
        await self._driver.lane_client(model)
        return self._driver.facts(model).spec

    async def _embeddings(self, body: bytes) -> bytes:
        request = read_embedding_request(body)
        model = embedding_model(await self._spec(request.model))
        rows = model.rows(request)
        call = Call(rows.tensors, rows.parameters, model.outputs, None, BACKGROUND)
        outputs = await infer(self._driver, request.model, call)
        values = len(request.texts) * model.dimensions
        if values > _LONG_FLOATS:
            return await asyncio.to_thread(
                embedding_answer, model, [outputs], binary=request.binary
            )
        return embedding_answer(model, [outputs], binary=request.binary)

    async def _generation(self, route: TextRoute, body: bytes) -> bytes:
        if len(body) > _LONG_BODY_BYTES:
            request = await asyncio.to_thread(route.read, body)
        else:
            request = route.read(body)
        if request.options.stream:
            text = "stream is true; a batch has whole answers: leave it out"
            raise about("stream", InvalidRequest(text))
        spec = await self._spec(request.model)
        check_makes_texts(spec)
        parameters = request.options.parameters(spec)
        text_model = await self._texts.find(spec)
        if request.size > _LONG_PROMPT:
            prompts = await asyncio.to_thread(route.prompts, text_model, request)
        else:
            prompts = route.prompts(text_model, request)
        (tensor,) = spec.inputs
        runs = [
            asyncio.create_task(
                self._text(
                    request.model,
                    StreamCall(
                        {tensor.name: prompt.astype(tensor.np_dtype)[None]},
                        parameters, None, None, BACKGROUND,
                    ),
                    text_model,
                    request.options.stops,
                )
            )
            for prompt in prompts
        ]  # fmt: skip
        try:
            found = await asyncio.gather(*runs)
        finally:
            for run in runs:
                run.cancel()
        answer = TextAnswer(route.form, uuid.uuid4().hex, int(time.time()), request.model)
        usage = Usage(sum(map(_length, prompts)), sum(tokens for _, tokens in found))
        return answer.whole([whole for whole, _ in found], usage)

    async def _text(
        self, model: str, call: StreamCall, text_model: TextModel, stops: Sequence[str]
    ) -> tuple[WholeText, int]:
        """The text of one prompt, and how many tokens it has."""
        stream = AsyncTokenStream(self._driver, model, call)
        text, pieces = text_model.generated(stops), []
        try:
            while not text.stopped and (new := await stream.next_tokens()) is not None:
                pieces.append(text.push(new.tolist()))
        finally:
            stream.cancel()
        reason = stream.finish_reason
        pieces.append(text.end())
        if text.stopped:
            reason = "stop"
        if reason is None:
            raise InternalError("the sequence ended without a reason")
        return WholeText("".join(pieces), reason), text.tokens


def _length(prompt: Array) -> int:
    return len(prompt)
