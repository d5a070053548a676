"""Answers and events of completions and chats."""

from __future__ import annotations

import json
from typing import Any

import pytest

from batchpool.wire.openai_texts import CHAT, COMPLETION, AnswerForm, TextAnswer, Usage, WholeText

FACTS = {"created": 12, "model": 'st"o%ry'}
TEXT = 'a "b"\n%d \\ é🐕'


def answer(form: AnswerForm, **options: Any) -> TextAnswer:
    return TextAnswer(form, "x1", 12, 'st"o%ry', **options)


def test_a_whole_completion() -> None:
    raw = answer(COMPLETION).whole([WholeText(TEXT, "length"), WholeText("", "stop")], Usage(5, 3))
    assert json.loads(raw) == {
        **FACTS,
        "id": "cmpl-x1",
        "object": "text_completion",
        "choices": [
            {"index": 0, "text": TEXT, "logprobs": None, "finish_reason": "length"},
            {"index": 1, "text": "", "logprobs": None, "finish_reason": "stop"},
        ],
        "usage": {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8},
    }


def test_a_whole_chat() -> None:
    found = json.loads(answer(CHAT).whole([WholeText(TEXT, "stop")], Usage(1, 2)))
    message = {"role": "assistant", "content": TEXT, "refusal": None}
    assert (found["id"], found["object"]) == ("chatcmpl-x1", "chat.completion")
    assert found["choices"] == [
        {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
    ]


@pytest.mark.parametrize("with_usage", [False, True])
@pytest.mark.parametrize(
    ("form", "head", "first", "part", "ending"),
    [
        (COMPLETION, ("cmpl-x1", "text_completion"), None, {"text": TEXT}, {"text": ""}),
        (
            CHAT,
            ("chatcmpl-x1", "chat.completion.chunk"),
            {"delta": {"role": "assistant", "content": ""}},
            {"delta": {"content": TEXT}},
            {"delta": {}},
        ),
    ],
)
def test_the_events_of_a_stream(
    form: AnswerForm, head: Any, first: Any, part: Any, ending: Any, with_usage: bool
) -> None:
    it = answer(form, with_usage=with_usage)
    none = {"usage": None} if with_usage else {}

    def expected(choice: Any, reason: str | None = None) -> Any:
        choices = [{"index": 3, **choice, "logprobs": None, "finish_reason": reason}]
        return {**FACTS, "id": head[0], "object": head[1], "choices": choices, **none}

    begin = it.first(3)
    assert (None if begin is None else json.loads(begin)) == (first and expected(first))
    assert json.loads(it.part(3, TEXT)) == expected(part)
    assert json.loads(it.last(3, "stop")) == expected(ending, "stop")
    usage = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
    assert json.loads(it.usage(Usage(1, 2))) == {**expected({}), "choices": [], "usage": usage}


def test_no_event_has_a_line_end() -> None:
    assert b"\n" not in answer(CHAT).part(0, "a\nb\r\u2028")
