"""The differences between /v1/completions and /v1/chat/completions: `TEXT_ROUTES`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from batchpool.core.errors import InvalidRequest
from batchpool.core.tensors.dtypes import Array
from batchpool.core.tensors.spec import ModelSpec
from batchpool.text.text_model import TextModel
from batchpool.wire.chats import MESSAGES, ChatRequest, read_chat_request
from batchpool.wire.completions import (
    MOST_PROMPTS,
    PROMPT,
    CompletionRequest,
    read_completion_request,
)
from batchpool.wire.embeddings import EmbeddingModel
from batchpool.wire.openai_members import about
from batchpool.wire.openai_texts import CHAT, COMPLETION, AnswerForm
from batchpool.wire.request import Body

MostTokens = Callable[[str], int]


class ReadRequest(Protocol):
    """Reads a whole body. most_tokens: the tokens of the longest prompt of a model, or raises why
    there is no such model; with it, longer ones may be refused before they are made."""

    def __call__(self, body: Body, *, most_tokens: MostTokens | None = None) -> Any: ...


@dataclass(frozen=True)
class TextRoute:
    """One route.

    read: the request of a body.  most_prompts: of one request.  prompts: its prompts as tokens,
    made by the text model; refuses with InvalidRequest.  member: of the request, the one that holds
    them.  form: of the answers.
    """

    read: ReadRequest
    most_prompts: int
    prompts: Callable[[TextModel, Any], list[Array]]
    member: str
    form: AnswerForm


def check_makes_texts(spec: ModelSpec) -> None:
    """Raise InvalidRequest for a model that is no generator with a text."""
    if spec.text is not None:
        return
    without = "generator without a text (bp.Text; of causal_lm: tokenizer.json in its folder)"
    kind = f"is a {without}" if spec.generates else "is no generator"
    way = f"/v2/models/{spec.name}/{'generate' if spec.generates else 'infer'}"
    if EmbeddingModel.of(spec) is not None:
        way = "/v1/embeddings"
    text = f"{spec.name!r} {kind} and makes no texts; ask it at {way}"
    raise about("model", InvalidRequest(text))


def _prompts_of_completion(text: TextModel, request: CompletionRequest) -> list[Array]:
    found = []
    for index, prompt in enumerate(request.prompts):
        try:
            found.append(text.prompt(prompt))
        except InvalidRequest as exc:
            raise about(request.place(index), exc) from None
    return found


def _read_chat(body: Body, *, most_tokens: MostTokens | None = None) -> ChatRequest:
    return read_chat_request(body)  # texts alone, which a tokenizer counts


def _prompts_of_chat(text: TextModel, request: ChatRequest) -> list[Array]:
    if not text.has_chats:
        error = InvalidRequest(
            f"model {request.model!r} has no chat template; ask it at /v1/completions"
        )
        raise about("model", error)
    try:
        return [text.chat(request.messages)]
    except InvalidRequest as exc:
        raise about(MESSAGES, exc) from None


TEXT_ROUTES: Mapping[str, TextRoute] = {
    "/v1/completions": TextRoute(
        read_completion_request, MOST_PROMPTS, _prompts_of_completion, PROMPT, COMPLETION
    ),
    "/v1/chat/completions": TextRoute(_read_chat, 1, _prompts_of_chat, MESSAGES, CHAT),
}
