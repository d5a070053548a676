"""The lines of OpenAI's batches: those of an input file, and those that answer them.

    in     {"custom_id": "a", "method": "POST", "url": "/v1/embeddings", "body": {...}}
    out    {"id": "batch_req_...", "custom_id": "a",
            "response": {"status_code": 200, "request_id": "...", "body": {...}}, "error": null}

A line whose request was refused or failed has the same form, with the status and the error that the
endpoint would have answered. A line that is no request, or was not run, has `response` null and its
`error` instead. Both stand in the error file.
https://platform.openai.com/docs/guides/batch
"""

from __future__ import annotations

import hashlib

import msgspec

from batchpool.wire.openai import MOST_BODY_BYTES
from batchpool.wire.request import brief

ENDPOINTS = ("/v1/embeddings", "/v1/completions", "/v1/chat/completions")
MOST_LINE_BYTES = MOST_BODY_BYTES + (64 << 10)
LONGEST_CUSTOM_ID = 512  # characters
_MOST_SHOWN = 80  # bytes of a value that is wrong
_encode = msgspec.json.Encoder().encode


class LineFault(Exception):
    """A line that is no request. code: as OpenAI has it. param: the member at fault, "" for the
    whole line. custom_id: of the line, None where it has none."""

    def __init__(self, code: str, message: str, param: str = "", custom_id: str | None = None):
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param
        self.custom_id = custom_id


class BatchLine(msgspec.Struct):
    """One request of a batch. body: its JSON."""

    custom_id: str
    body: bytes


class _Members(msgspec.Struct):
    """The members of a line, whatever they are: no object is made of what is no text."""

    custom_id: msgspec.Raw = msgspec.Raw(b"")
    method: msgspec.Raw = msgspec.Raw(b"")
    url: msgspec.Raw = msgspec.Raw(b"")
    body: msgspec.Raw = msgspec.Raw(b"")


_DECODER = msgspec.json.Decoder(_Members)


def read_line(raw: bytes, endpoint: str) -> BatchLine:
    """The request of a line. endpoint: of the batch. Raises LineFault for one that is none."""
    if len(raw) > MOST_LINE_BYTES:
        raise too_long()
    try:
        line = _DECODER.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise LineFault(
            "invalid_json_line", f"the line is no JSON object: {str(exc)[:200]}"
        ) from None
    given = _text(line.custom_id)
    if given is None or not 1 <= len(given) <= LONGEST_CUSTOM_ID:
        text = f"a text of 1 to {LONGEST_CUSTOM_ID} characters was expected"
        raise LineFault(
            "invalid_custom_id", f"custom_id {_shown(line.custom_id)}; {text}", "custom_id"
        )
    if _text(line.method) != "POST":
        what = _shown(line.method)
        raise LineFault("invalid_method", f'method {what}; "POST" was expected', "method", given)
    if _text(line.url) != endpoint:
        raise LineFault(
            "mismatched_url",
            f"url {_shown(line.url)}; {endpoint}, that of the batch, was expected",
            "url",
            given,
        )
    body = bytes(line.body)
    if not body.startswith(b"{"):
        what = "is no object" if body else "is missing"
        raise LineFault(
            "invalid_body",
            f"body {what}; the JSON object that {endpoint} takes was expected",
            "body",
            given,
        )
    return BatchLine(given, body)


def _text(raw: msgspec.Raw) -> str | None:
    """The text that some JSON is; None for JSON that is no text."""
    if bytes(memoryview(raw)[:1]) != b'"':
        return None
    try:
        return msgspec.json.decode(raw, type=str)
    except (msgspec.DecodeError, UnicodeDecodeError):  # half of a surrogate pair
        return None


def _shown(raw: msgspec.Raw) -> str:
    """The JSON of a member, for a message."""
    written = bytes(memoryview(raw)[:_MOST_SHOWN])
    return f"is {written.decode('utf-8', 'replace')}" if written else "is missing"


def too_long() -> LineFault:
    """The fault of a line of too many bytes."""
    return LineFault(
        "line_too_long", f"the line has more than {MOST_LINE_BYTES} bytes, the most that is taken"
    )


def repeated(custom_id: str) -> LineFault:
    """The fault of a line whose custom_id an earlier line has."""
    return LineFault(
        "duplicate_custom_id",
        f"custom_id {brief(custom_id)} is that of an earlier line, too",
        "custom_id",
        custom_id,
    )


def line_id(batch: str, number: int) -> str:
    """The id of the request of a line. The same line has the same id whenever it is run."""
    return "batch_req_" + hashlib.sha256(f"{batch} {number}".encode()).hexdigest()[:32]


def answered_line(identifier: str, custom_id: str, status: int, body: bytes) -> bytes:
    """The line of a request that has an answer, whatever its status. body: JSON of one line."""
    return (
        b'{"id":%b,"custom_id":%b,"response":{"status_code":%d,"request_id":%b,"body":%b},'
        b'"error":null}\n'
    ) % (
        _encode(identifier),
        _encode(custom_id),
        status,
        _encode(identifier.removeprefix("batch_")),
        body,
    )


def unanswered_line(identifier: str, number: int, fault: LineFault) -> bytes:
    """The line of one that was not run. number: of the line in the input file, from 1."""
    error = {
        "code": fault.code,
        "message": fault.message,
        "param": fault.param or None,
        "line": number,
    }
    found = {"id": identifier, "custom_id": fault.custom_id, "response": None, "error": error}
    return _encode(found) + b"\n"
