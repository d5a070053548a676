"""The lines of batches: what is a request, and how answers are written."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchpool.wire.batch_lines import (
    LONGEST_CUSTOM_ID,
    MOST_LINE_BYTES,
    LineFault,
    answered_line,
    line_id,
    read_line,
    unanswered_line,
)

URL = "/v1/embeddings"
GOOD = {"custom_id": "a", "method": "POST", "url": URL, "body": {"model": "m", "input": "é"}}


def test_a_request_is_read_with_its_body_as_it_is_written() -> None:
    body = '{"model": "m",  "input": [1e0, "\\u00e9"]}'
    raw = f'{{"url": "{URL}", "more": [1], "custom_id": "ü", "body": {body}, "method": "POST"}}'
    line = read_line(raw.encode(), URL)
    assert (line.custom_id, line.body) == ("ü", body.encode())


@pytest.mark.parametrize(
    ("change", "code", "param", "custom_id"),
    [
        ({"custom_id": None}, "invalid_custom_id", "custom_id", None),
        ({"custom_id": 7}, "invalid_custom_id", "custom_id", None),
        ({"custom_id": ""}, "invalid_custom_id", "custom_id", None),
        ({"custom_id": [[]] * 1000}, "invalid_custom_id", "custom_id", None),
        ({"custom_id": {"a": "b"}}, "invalid_custom_id", "custom_id", None),
        ({"custom_id": "x" * (LONGEST_CUSTOM_ID + 1)}, "invalid_custom_id", "custom_id", None),
        ({"method": "GET"}, "invalid_method", "method", "a"),
        ({"url": "/v1/completions"}, "mismatched_url", "url", "a"),
        ({"body": "text"}, "invalid_body", "body", "a"),
        ({"body": None}, "invalid_body", "body", "a"),
    ],
)
def test_a_fault_names_its_member(
    change: dict[str, Any], code: str, param: str, custom_id: str | None
) -> None:
    with pytest.raises(LineFault) as found:
        read_line(json.dumps(GOOD | change).encode(), URL)
    assert (found.value.code, found.value.param) == (code, param)
    assert found.value.custom_id == custom_id


@pytest.mark.parametrize("missing", list(GOOD))
def test_each_member_has_to_be_there(missing: str) -> None:
    rest = {name: value for name, value in GOOD.items() if name != missing}
    with pytest.raises(LineFault, match="is missing"):
        read_line(json.dumps(rest).encode(), URL)


@given(st.binary(max_size=50))
def test_any_bytes_are_a_request_or_a_fault(raw: bytes) -> None:
    with pytest.raises(LineFault):
        read_line(raw, URL)


def test_deep_nesting_and_long_lines_are_faults() -> None:
    with pytest.raises(LineFault):
        read_line(b'{"body":' + b"[" * 100_000, URL)
    with pytest.raises(LineFault) as long:
        read_line(b" " * (MOST_LINE_BYTES + 1), URL)
    assert long.value.code == "line_too_long"


def test_answers_have_openais_form() -> None:
    identifier = line_id("batch_1", 3)
    assert identifier == line_id("batch_1", 3) != line_id("batch_1", 4)
    raw = answered_line(identifier, 'a"\n', 200, b'{"x":1}')
    assert raw.endswith(b"\n")
    assert raw.count(b"\n") == 1
    assert json.loads(raw) == {
        "id": identifier,
        "custom_id": 'a"\n',
        "response": {"status_code": 200, "request_id": identifier[6:], "body": {"x": 1}},
        "error": None,
    }
    fault = LineFault("code", "text\n", "body", "a")
    found = json.loads(unanswered_line(identifier, 3, fault))
    assert found["response"] is None
    assert found["error"] == {"code": "code", "message": "text\n", "param": "body", "line": 3}
