"""The routes of batches, as OpenAI has them.

POST /v1/batches               makes a batch of a file that was uploaded
GET  /v1/batches               a list, the newest first
GET  /v1/batches/ID            its status
POST /v1/batches/ID/cancel     ends it; the lines that are done are kept
"""

from __future__ import annotations

import secrets

import msgspec
from starlette.routing import Route

from batchpool.control.batch_messages import (
    BatchFound,
    BatchList,
    CancelBatch,
    CreateBatch,
    GetBatch,
    ListBatches,
)
from batchpool.core.errors import InvalidRequest
from batchpool.frontend.asgi.batch_request import BatchRequest, BatchRoute
from batchpool.frontend.asgi.files import checked_ttl_ms
from batchpool.frontend.http.response import HttpResponse, json_response
from batchpool.frontend.service.batch_objects import WINDOW, batch_object, list_object
from batchpool.frontend.service.pool_view import PoolView
from batchpool.wire.openai_members import Members, about
from batchpool.wire.request import brief

BATCHES = "/v1/batches"
_TTL = "output_expires_after"
_MEMBERS = f"input_file_id, endpoint, completion_window, metadata, {_TTL}"
_MOST_LISTED, _LISTED = 100, 20
_MOST_PAIRS, _LONGEST_KEY, _LONGEST_VALUE = 16, 64, 512  # of metadata, as OpenAI has it


class _ExpiresAfter(msgspec.Struct, forbid_unknown_fields=True):
    anchor: str
    seconds: int


def batch_routes(view: PoolView, discard_bytes: int) -> list[Route]:
    """The routes of one front end. discard_bytes: the most that is dropped of an unread body."""
    return [
        Route(BATCHES, BatchRoute(view, _batches, discard_bytes), methods=["GET", "POST"]),
        Route(f"{BATCHES}/{{id}}", BatchRoute(view, _batch, discard_bytes), methods=["GET"]),
        Route(
            f"{BATCHES}/{{id}}/cancel", BatchRoute(view, _cancel, discard_bytes), methods=["POST"]
        ),
    ]


async def _batches(request: BatchRequest) -> HttpResponse:
    """POST of a batch, and GET of the list."""
    if request.method == "POST":
        made = await request.link.ask(_new_batch(request), BatchFound)
        return json_response(batch_object(made.batch))
    message = ListBatches(
        request.principal, request.text("after"), request.number("limit", _LISTED, _MOST_LISTED)
    )
    found = await request.link.ask(message, BatchList)
    return json_response(list_object([*map(batch_object, found.batches)], has_more=found.has_more))


async def _batch(request: BatchRequest) -> HttpResponse:
    """GET of a batch."""
    found = await request.link.ask(GetBatch(request.id, request.principal), BatchFound)
    return json_response(batch_object(found.batch))


async def _cancel(request: BatchRequest) -> HttpResponse:
    """POST that ends a batch."""
    found = await request.link.ask(CancelBatch(request.id, request.principal), BatchFound)
    return json_response(batch_object(found.batch))


def _new_batch(request: BatchRequest) -> CreateBatch:
    """The message for a body. InvalidRequest names the member that is at fault."""
    members = Members.of(request.body)
    file = members.required("input_file_id", str, "a text")
    endpoint = members.required("endpoint", str, "a text")
    window = members.required("completion_window", str, "a text")
    if window != WINDOW:
        text = f'completion_window is {brief(window)}; "{WINDOW}", the only one, was expected'
        raise about("completion_window", InvalidRequest(text))
    metadata = _metadata(members)
    after = members.take(_TTL, _ExpiresAfter, 'an object with "anchor" and "seconds"')
    ttl_ms = 0
    if after is not None:
        ttl_ms = checked_ttl_ms(_TTL, after.anchor, after.seconds, brief(after.seconds))
    if members.rest:
        name = next(iter(members.rest))
        text = f"unknown member {brief(name)}; {_MEMBERS} were expected"
        raise about(name, InvalidRequest(text))
    return CreateBatch(
        secrets.token_bytes(16), request.principal, request.caller, endpoint, file, metadata, ttl_ms
    )


def _metadata(members: Members) -> dict[str, str] | None:
    found = members.take("metadata", dict[str, str], "an object whose values are texts")
    if found is None:
        return None
    is_fit = len(found) <= _MOST_PAIRS and all(
        len(key) <= _LONGEST_KEY and len(value) <= _LONGEST_VALUE for key, value in found.items()
    )
    if not is_fit:
        text = (
            f"metadata is too large; at most {_MOST_PAIRS} pairs were expected, with keys of at"
            f" most {_LONGEST_KEY} characters and values of at most {_LONGEST_VALUE}"
        )
        raise about("metadata", InvalidRequest(text))
    return found
