"""The prompt of one `generate` request: tokens in any wire form, or a text."""

from __future__ import annotations

from functools import partial

from batchpool.core.errors import InvalidRequest
from batchpool.core.tensors.dtypes import Array
from batchpool.core.tensors.rows import Rows
from batchpool.core.tensors.spec import ModelSpec
from batchpool.frontend.asgi.infer import parsed
from batchpool.frontend.http.background import BackgroundThread
from batchpool.frontend.http.memory_budget import MemoryReservation
from batchpool.frontend.http.request_head import RequestHead
from batchpool.frontend.service.http_endpoint import HttpEndpoint
from batchpool.frontend.service.prompt_limits import ADVICE
from batchpool.frontend.service.text_models import TextModels
from batchpool.text.generated_text import GeneratedText
from batchpool.text.text_model import TextModel
from batchpool.wire.encoding import decode_body
from batchpool.wire.openai_members import about
from batchpool.wire.request import Body, InferRequest, header_timeout_ns
from batchpool.wire.text_prompts import (
    TEXT_INPUT,
    TextPrompt,
    may_be_text_prompt,
    read_text_prompt,
)

_LONG_BODY_BYTES = 256 * 1024  # a smaller one takes at most a few milliseconds of the loop
_LONG_PROMPT = 4096  # characters; fewer take at most two milliseconds of the loop


class PromptReader:
    """Reads the body of one request. streams: the route that was asked sends tokens as they come.

    generated: makes the text of the answer; None for a prompt of tokens, which is answered by
    tokens.
    """

    def __init__(self, texts: TextModels, *, streams: bool) -> None:
        self.generated: GeneratedText | None = None
        self._texts = texts
        self._streams = streams

    async def read(
        self,
        endpoint: HttpEndpoint,
        head: RequestHead,
        body: Body,
        background: BackgroundThread,
        decoded: MemoryReservation,
    ) -> InferRequest:
        """The request, as `parsed` of infer gives one. InvalidRequest or TooLarge for a text that
        is none, or that the generator cannot take."""
        self.generated = None
        plain = body
        if head.headers.get(b"content-encoding") and endpoint.endpoint.facts.spec.text:
            begin = partial(decoded.grow_to, endpoint.most_decoded_bytes(head, len(body)))
            most = endpoint.max_prompt_bytes
            plain = await background.run(
                head.flow, decode_body, head.headers, body, most, ADVICE, begin=begin
            )
        spec = endpoint.endpoint.facts.spec
        prompt = None
        if may_be_text_prompt(spec, head.headers, plain):
            if len(plain) > _LONG_BODY_BYTES:
                prompt = await background.run(head.flow, read_text_prompt, plain)
            else:
                prompt = read_text_prompt(plain)
        if prompt is None:
            return await parsed(endpoint, head, body, background, decoded)
        return await self._request(spec, prompt, head, background)

    async def _request(
        self, spec: ModelSpec, prompt: TextPrompt, head: RequestHead, background: BackgroundThread
    ) -> InferRequest:
        if spec.text is None:
            raise _about_text(
                f"model {spec.name!r} has no text (bp.Text), so that {TEXT_INPUT!r} cannot be read;"
                f" send tokens as {spec.inputs[0].name!r}"
            )
        if prompt.streams is not None and prompt.streams is not self._streams:
            asked, other = ("true", "generate_stream") if prompt.streams else ("false", "generate")
            error = InvalidRequest(f"stream is {asked}; POST it to /v2/models/{spec.name}/{other}")
            raise about("stream", error)
        parameters = prompt.options.parameters(spec)
        text = await self._texts.find(spec)
        if len(prompt.prompt) > _LONG_PROMPT:
            tokens = await background.run(head.flow, _tokens, text, prompt.prompt)
        else:
            tokens = _tokens(text, prompt.prompt)
        self.generated = text.generated(prompt.options.stops)
        (tensor,) = spec.inputs
        rows = Rows(1, {tensor.name: tokens.astype(tensor.np_dtype)[None]}, parameters)
        timeout_ns = header_timeout_ns(head.headers)
        return InferRequest(prompt.id, rows, (), timeout_ns, head.priority, "generate")


def _tokens(text: TextModel, prompt: str) -> Array:
    try:
        return text.prompt(prompt)
    except InvalidRequest as exc:
        raise about(TEXT_INPUT, exc) from None


def _about_text(text: str) -> InvalidRequest:
    return about(TEXT_INPUT, InvalidRequest(text))
