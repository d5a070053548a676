"""The routes of files, as OpenAI has them.

POST   /v1/files                the upload, multipart/form-data
GET    /v1/files                a list
GET    /v1/files/ID             a file's facts
GET    /v1/files/ID/content     its bytes
DELETE /v1/files/ID

The bytes travel to and from the task process piece by piece, each once the one before is on its
disk or was taken by the caller; a front end holds one piece of each.
"""

from __future__ import annotations

import logging
import secrets

from starlette.routing import Route

from batchpool.control.batch_messages import (
    AppendToUpload,
    BeginUpload,
    DeleteFile,
    DropUpload,
    EndUpload,
    FileForm,
    FileFound,
    FileList,
    FilePiece,
    GetFile,
    ListFiles,
    ReadFile,
    UploadState,
)
from batchpool.core.errors import InvalidRequest, PoolError, TooLarge
from batchpool.frontend.asgi.batch_request import BatchRequest, BatchRoute
from batchpool.frontend.asgi.unless_lost import unless_lost
from batchpool.frontend.http.memory_budget import MemoryReservation
from batchpool.frontend.http.response import HttpResponse, json_response
from batchpool.frontend.http.upload_form import MOST_BYTES_BESIDE, UploadForm
from batchpool.frontend.service.batch_objects import deleted_file, file_object, list_object
from batchpool.frontend.service.pool_view import PoolView
from batchpool.wire.openai_members import about
from batchpool.wire.request import brief

_LOG = logging.getLogger("batchpool.frontend")
FILES = "/v1/files"
PURPOSE = "batch"
_PIECE_BYTES = 256 * 1024
_MOST_LISTED = 10_000
_ANCHOR, _SECONDS = "expires_after[anchor]", "expires_after[seconds]"
_CREATED = "created_at"
LEAST_TTL_S, MOST_TTL_S = 3600, 2_592_000  # as OpenAI has it


def file_routes(view: PoolView, discard_bytes: int) -> list[Route]:
    """The routes of one front end. discard_bytes: the most that is dropped of an unread body."""
    uploads = BatchRoute(view, _files, discard_bytes, reads_body=True)
    one = BatchRoute(view, _file, discard_bytes)
    content = BatchRoute(view, _content, discard_bytes)
    return [
        Route(FILES, uploads, methods=["GET", "POST"]),
        Route(f"{FILES}/{{id}}", one, methods=["GET", "DELETE"]),
        Route(f"{FILES}/{{id}}/content", content, methods=["GET"]),
    ]


async def _files(request: BatchRequest) -> HttpResponse | None:
    """POST of a file, and GET of the list."""
    if request.method == "POST":
        return await _upload(request)
    message = ListFiles(
        request.principal,
        request.text("after"),
        request.number("limit", _MOST_LISTED, _MOST_LISTED),
        request.text("purpose"),
        oldest_first=request.choice("order", "desc", "asc") == "asc",
    )
    found = await request.link.ask(message, FileList)
    return json_response(list_object([*map(file_object, found.files)], has_more=found.has_more))


async def _file(request: BatchRequest) -> HttpResponse:
    """GET and DELETE of a file."""
    if request.method == "DELETE":
        gone = await request.link.ask(DeleteFile(request.id, request.principal), FileFound)
        return json_response(deleted_file(gone.file))
    found = await request.link.ask(GetFile(request.id, request.principal), FileFound)
    return json_response(file_object(found.file))


async def _content(request: BatchRequest) -> HttpResponse | None:
    """GET of a file's bytes."""
    file = (await request.link.ask(GetFile(request.id, request.principal), FileFound)).file
    offset, send = 0, request.send
    if request.method == "HEAD":  # nothing is read for a body that is not sent
        return HttpResponse(200, _fields(file), b"")
    while offset < file.bytes or not request.is_sent:
        message = ReadFile(request.id, request.principal, offset, _PIECE_BYTES)
        try:
            found = await unless_lost(request.request_body, request.link.ask(message, FilePiece))
        except PoolError as exc:
            if not request.is_sent:
                raise
            _LOG.warning("a file ends early for its reader: %s", exc)
            return None  # the connection is cut, since bytes are missing
        if found is None:
            return None
        if not request.is_sent:
            request.is_sent = True
            await send({"type": "http.response.start", "status": 200, "headers": _fields(file)})
        offset += len(found.piece)
        more = offset < file.bytes and bool(found.piece)
        await send({"type": "http.response.body", "body": found.piece, "more_body": more})
        if not more:
            break
    return None


def _fields(file: FileForm) -> list[tuple[bytes, bytes]]:
    return [
        (b"content-type", b"application/octet-stream"),
        (b"content-length", b"%d" % file.bytes),
        (b"x-content-type-options", b"nosniff"),
        (b"content-disposition", b'attachment; filename="%b.jsonl"' % file.id.encode()),
    ]


async def _upload(request: BatchRequest) -> HttpResponse | None:
    """The response to an upload; None when the caller has gone."""
    form = UploadForm(request.headers)
    try:
        return await _take_upload(request, form)
    finally:
        form.close()


async def _take_upload(request: BatchRequest, form: UploadForm) -> HttpResponse | None:
    view, link = request.view, request.link
    view.memory.check()
    announced = _announced(request)
    message = BeginUpload(secrets.token_bytes(16), request.principal, request.caller, announced)
    identifier = (await link.ask(message, UploadState)).id
    reservation = MemoryReservation(view.memory, request.flow)
    is_kept = False
    try:
        size = await _send_pieces(request, form, identifier, reservation)
        if request.request_body.lost:
            return None
        form.check_end()
        _check_purpose(form)
        end = EndUpload(identifier, form.filename, PURPOSE, size, _ttl_ms(form))
        kept = await link.ask(end, FileFound)
        is_kept = True
        return json_response(file_object(kept.file))
    finally:
        reservation.release()
        if not is_kept:
            link.send(DropUpload(identifier), lambda _: None)


def _announced(request: BatchRequest) -> int:
    """The least bytes that the file has by the length of the body, 0 where that is unknown. Raises
    TooLarge for too many."""
    length = request.headers.get(b"content-length", b"")
    announced = int(length) if length.isdigit() and len(length) < 19 else 0
    most = request.view.session.server["file_max_mib"] << 20
    if announced > most + MOST_BYTES_BESIDE:
        raise TooLarge(
            f"the body has {announced} bytes; a file may have {most} (file_max_mib): divide it into"
            " several"
        )
    return max(0, announced - MOST_BYTES_BESIDE)


async def _send_pieces(
    request: BatchRequest, form: UploadForm, identifier: str, reservation: MemoryReservation
) -> int:
    """Hand the file's bytes on as they come; returns their number."""
    body, held, offset = request.request_body, bytearray(), 0
    while not form.ended and (piece := await body.next_piece()):
        held += form.feed(piece)
        reservation.grow_to(len(held))
        if len(held) >= _PIECE_BYTES:
            await request.link.ask(AppendToUpload(identifier, offset, bytes(held)), UploadState)
            offset += len(held)
            held.clear()
    if held and not body.lost:
        await request.link.ask(AppendToUpload(identifier, offset, bytes(held)), UploadState)
    return offset + len(held)


def _check_purpose(form: UploadForm) -> None:
    purpose = form.required("purpose")
    if purpose != PURPOSE:
        text = f'purpose is {brief(purpose)}; "batch", the only one here, was expected'
        raise about("purpose", InvalidRequest(text))


def _ttl_ms(form: UploadForm) -> int:
    """The time that the caller wants the file to be kept; 0 where it says nothing."""
    if _ANCHOR not in form.fields and _SECONDS not in form.fields:
        return 0
    anchor, seconds = form.required(_ANCHOR), form.required(_SECONDS)
    number = int(seconds) if seconds.isascii() and seconds.isdigit() and len(seconds) < 10 else 0
    return checked_ttl_ms("expires_after", anchor, number, brief(seconds))


def checked_ttl_ms(member: str, anchor: str, seconds: int, shown: str) -> int:
    """A time to live in milliseconds. InvalidRequest for another anchor, and for other times than
    OpenAI takes. shown: the seconds as they came."""
    if anchor != _CREATED or not LEAST_TTL_S <= seconds <= MOST_TTL_S:
        text = (
            f'{member} is "{brief(anchor)[1:-1]}" and {shown} seconds; "{_CREATED}" and'
            f" {LEAST_TTL_S} to {MOST_TTL_S} seconds were expected"
        )
        raise about(member, InvalidRequest(text))
    return seconds * 1000
