"""Generated texts as OpenAI's API writes them: whole answers, and the events of streams.

The members that are equal in all events of a stream are written once, as bytes around the text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

DONE = b"[DONE]"  # the last event, which is no JSON
_encode = msgspec.json.Encoder().encode
_NO_REASON = b',"logprobs":null,"finish_reason":null}]'


class Usage(NamedTuple):
    """Tokens of one request: of its prompts, and those that were made."""

    prompt_tokens: int
    completion_tokens: int

    def json(self) -> bytes:
        """The member `usage`."""
        return _encode({**self._asdict(), "total_tokens": sum(self)})


class WholeText(NamedTuple):
    """One text at its end. finish_reason: "stop" or "length"."""

    text: str
    finish_reason: str


@dataclass(frozen=True)
class AnswerForm:
    """The form of the answers of one route.

    prefix: of their ids.  answer, event: the member "object" of an answer and of an event.
    part: of a choice in an event, the JSON on both sides of a part of the text.  first: that of the
    event before the first part, b"" for none.  ending: that of the last event.
    """

    prefix: str
    answer: str
    event: str
    part: tuple[bytes, bytes]
    first: bytes
    ending: bytes

    def of_choice(self, text: str) -> Mapping[str, Any]:
        """The member of a choice in an answer that has the whole text."""
        if not self.first:
            return {"text": text}
        return {"message": {"role": "assistant", "content": text, "refusal": None}}


COMPLETION = AnswerForm(
    "cmpl-",
    "text_completion",
    "text_completion",
    part=(b',"text":', b""),
    first=b"",
    ending=b',"text":""',
)
CHAT = AnswerForm(
    "chatcmpl-",
    "chat.completion",
    "chat.completion.chunk",
    part=(b',"delta":{"content":', b"}"),
    first=b',"delta":{"role":"assistant","content":""}',
    ending=b',"delta":{}',
)


class TextAnswer:
    """The answer to one request, in one piece or as the JSON of its events.

    name: of the request, behind the prefix of the id.  created_s: Unix time.  with_usage: the
    events have the member `usage`, which is null in all but the last.
    """

    def __init__(
        self, form: AnswerForm, name: str, created_s: int, model: str, *, with_usage: bool = False
    ) -> None:
        self.with_usage = with_usage
        self._form = form
        self._facts = {"id": form.prefix + name, "created": created_s, "model": model}
        self._head = self._begin(form.event)
        self._tail = b',"usage":null}' if with_usage else b"}"
        before, after = form.part
        self._before = before
        self._after = after + _NO_REASON + self._tail

    def _begin(self, kind: str) -> bytes:
        return _encode({"object": kind, **self._facts})[:-1] + b',"choices":['

    def whole(self, texts: Sequence[WholeText], usage: Usage) -> bytes:
        """The body of an answer, with all texts in the order of their prompts."""
        choices = [
            {
                "index": index,
                **self._form.of_choice(whole.text),
                "logprobs": None,
                "finish_reason": whole.finish_reason,
            }
            for index, whole in enumerate(texts)
        ]
        end = b',"usage":%b}' % usage.json()
        return self._begin(self._form.answer) + _encode(choices)[1:] + end

    def first(self, index: int) -> bytes | None:
        """The event before the first part of a text; None where the form has none."""
        if not self._form.first:
            return None
        return b'%b{"index":%d%b%b%b' % (
            self._head,
            index,
            self._form.first,
            _NO_REASON,
            self._tail,
        )

    def part(self, index: int, text: str) -> bytes:
        """The event of a part of a text."""
        return b'%b{"index":%d%b%b%b' % (
            self._head,
            index,
            self._before,
            _encode(text),
            self._after,
        )

    def last(self, index: int, finish_reason: str) -> bytes:
        """The event of the end of a text."""
        return b'%b{"index":%d%b,"logprobs":null,"finish_reason":%b}]%b' % (
            self._head,
            index,
            self._form.ending,
            _encode(finish_reason),
            self._tail,
        )

    def usage(self, usage: Usage) -> bytes:
        """The event behind all texts that says how many tokens there were."""
        return b'%b],"usage":%b}' % (self._head, usage.json())
