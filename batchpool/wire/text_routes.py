"""The differences between /v1/completions and /v1/chat/completions: `TEXT_ROUTES`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from batchpool.core.errors import InvalidRequest
from batchpool.core.tensors.dtypes import Array
from batchpool.core.tensors.spec import ModelSpec
from batchpool.text.text_model import TextModel
from batchpool.wire.chats import MESSAGES, ChatRequest, read_chat_request
from batchpool.wire.completions import PROMPT, CompletionRequest, read_completion_request
from batchpool.wire.openai_members import about
from batchpool.wire.openai_texts import CHAT, COMPLETION, AnswerForm
from batchpool.wire.request import Body


@dataclass(frozen=True)
class TextRoute:
    """One route.

    read: the request of a body.  prompts: its prompts as tokens, made by the text model; refuses
    with InvalidRequest.  member: of the request, the one that holds them.  form: of the answers.
    """

    read: Callable[[Body], Any]
    prompts: Callable[[TextModel, Any], list[Array]]
    member: str
    form: AnswerForm


def check_makes_texts(spec: ModelSpec) -> None:
    """Raise InvalidRequest for a model that is no generator with a text."""
    if spec.text is not None:
        return
    without = "generator without a text (bp.Text; of causal_lm: tokenizer.json in its folder)"
    kind = without if spec.generates else "model"
    way = "generate" if spec.generates else "infer"
    text = f"{spec.name!r} is a {kind} and makes no texts; ask it at /v2/models/{spec.name}/{way}"
    raise about("model", InvalidRequest(text))


def _prompts_of_completion(text: TextModel, request: CompletionRequest) -> list[Array]:
    found = []
    for index, prompt in enumerate(request.prompts):
        try:
            found.append(text.prompt(prompt))
        except InvalidRequest as exc:
            raise about(request.place(index), exc) from None
    return found


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
        read_completion_request, _prompts_of_completion, PROMPT, COMPLETION
    ),
    "/v1/chat/completions": TextRoute(read_chat_request, _prompts_of_chat, MESSAGES, CHAT),
}
