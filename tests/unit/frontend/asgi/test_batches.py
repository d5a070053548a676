"""The routes of files and batches, on the parts of the task process that answer them."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from batchpool.control.batch_messages import AppendToUpload, DropUpload, ReadFile
from batchpool.control.messages import Message
from batchpool.core.errors import StorageFull
from tests.unit.batches.desk import Desk, requests
from tests.unit.frontend.frontend_double import edge
from tests.unit.frontend.loops import on_loop, until
from tests.unit.frontend.models import Affine

FORM = {"content-type": "multipart/form-data; boundary=b"}
PURPOSE = b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
FILE = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a/in"\r\n\r\n%b\r\n'
END = b"--b--\r\n"


class LinkDouble:
    """Asks a desk in this process. asked: the messages so far. error: of the next piece."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._sent: set[asyncio.Task[Any]] = set()
        self.asked: list[Message] = []
        self.error: Exception | None = None

    async def ask(self, message: Any, reply: type, wait_s: float = 0) -> Any:
        self.asked.append(message)
        if self.error is not None and isinstance(message, AppendToUpload):
            raise self.error
        found = await self._desk.ask(message)
        assert isinstance(found, reply)
        return found

    def send(self, message: Any, listener: Callable[[Any], None]) -> int:
        self.asked.append(message)
        self._sent.add(asyncio.create_task(self._desk.ask(message)))
        return 0


class Place:
    """A front end with files. http: its callers. desk: what keeps them."""

    def __init__(self, http: httpx.AsyncClient, desk: Desk, link: LinkDouble) -> None:
        self.http = http
        self.desk = desk
        self.link = link

    async def upload(self, body: Any, headers: Any = None) -> httpx.Response:
        return await self.http.post("/v1/files", content=body, headers={**FORM, **(headers or {})})


@asynccontextmanager
async def place(folder: Path) -> AsyncIterator[Place]:
    async with edge(Affine, slots=8) as it:
        desk = Desk(folder)
        link = LinkDouble(desk)
        it.view.batches = link  # type: ignore[assignment]
        it.view.session.server["file_max_mib"] = 200
        yield Place(it.http, desk, link)
        await desk.close()


def refused(answer: httpx.Response) -> tuple[int, str, str | None]:
    error = answer.json()["error"]
    return answer.status_code, error["code"], error["param"]


@on_loop
async def test_a_server_without_files_says_how_to_have_them() -> None:
    async with edge(Affine, slots=8) as it:
        for method, path in (
            ("GET", "/v1/files"), ("POST", "/v1/files"), ("DELETE", "/v1/files/a"),
            ("GET", "/v1/files/a/content"), ("POST", "/v1/batches"), ("GET", "/v1/batches/a"),
            ("POST", "/v1/batches/a/cancel"),
        ):  # fmt: skip
            answer = await it.http.request(method, path)
            assert refused(answer) == (501, "not_supported", None)
            assert "batches = true" in answer.json()["error"]["message"]


@on_loop
async def test_a_file_goes_in_and_comes_out_in_pieces(tmp_path: Path) -> None:
    content = b"line\n" * 40_000

    async def pieces() -> AsyncIterator[bytes]:
        whole = FILE % content + PURPOSE + END
        for at in range(0, len(whole), 30_000):
            yield whole[at : at + 30_000]

    async with place(tmp_path) as it:
        kept = await it.upload(pieces())
        assert kept.status_code == 200
        file = kept.json()
        assert (file["object"], file["bytes"], file["filename"]) == ("file", len(content), "in")
        assert file["purpose"] == "batch"
        path = f"/v1/files/{file['id']}"
        assert (await it.http.get(path)).json() == file
        assert (await it.http.get("/v1/files")).json()["data"] == [file]
        found = await it.http.get(f"{path}/content")
        assert found.content == content
        assert found.headers["content-length"] == str(len(content))
        assert found.headers["x-content-type-options"] == "nosniff"
        it.link.asked.clear()
        head = await it.http.head(f"{path}/content")
        assert (head.content, head.headers) == (b"", found.headers)
        assert not [each for each in it.link.asked if isinstance(each, ReadFile)]
        gone = await it.http.delete(path)
        assert gone.json() == {"id": file["id"], "object": "file", "deleted": True}
        assert refused(await it.http.get(f"{path}/content")) == (404, "not_found", "id")
        empty = (await it.upload(PURPOSE + FILE % b"" + END)).json()
        assert (await it.http.get(f"/v1/files/{empty['id']}/content")).content == b""


@on_loop
async def test_what_is_refused_leaves_nothing(tmp_path: Path) -> None:
    async with place(tmp_path) as it:
        whole = FILE % b"x"
        for body, expected in (
            (
                whole + PURPOSE.replace(b"batch", b"other") + END,
                (400, "invalid_request", "purpose"),
            ),
            (whole + END, (400, "invalid_request", "purpose")),
            (PURPOSE + END, (400, "invalid_request", "file")),
            (PURPOSE + whole, (400, "invalid_request", None)),
            (whole + whole + END, (400, "invalid_request", "file")),
            (b"nothing", (400, "invalid_request", None)),
            (whole + PURPOSE + END.replace(b"--b", b"--c"), (400, "invalid_request", None)),
        ):
            assert refused(await it.upload(body)) == expected
        limit = {"content-length": str(300 << 20)}
        assert refused(await it.upload(b"x", limit)) == (413, "too_large", None)
        json_body = {"content-type": "application/json"}
        assert refused(await it.upload(b"{}", json_body)) == (415, "unsupported_media", None)
        it.link.error = StorageFull("the disk of the files is full")
        assert refused(await it.upload(whole + PURPOSE + END))[:2] == (507, "storage_full")
        await until(lambda: it.desk.store.quotas.files == 0, "the end of every upload")
        assert not it.desk.store.bodies.names()
        drops = [each for each in it.link.asked if isinstance(each, DropUpload)]
        assert len(drops) == 8


@on_loop
async def test_the_time_to_live_is_the_callers(tmp_path: Path) -> None:
    part = b'--b\r\nContent-Disposition: form-data; name="expires_after[%b]"\r\n\r\n%b\r\n'
    async with place(tmp_path) as it:
        for anchor, seconds, ok in (
            (b"created_at", b"3600", True), (b"created_at", b"1", False),
            (b"created_at", b"-5", False), (b"now", b"3600", False),
            (b"created_at", b"an hour", False), (b"created_at", b"99999999999", False),
        ):  # fmt: skip
            more = part % (b"anchor", anchor) + part % (b"seconds", seconds)
            answer = await it.upload(PURPOSE + more + FILE % b"x" + END)
            if ok:
                assert answer.json()["expires_at"] - answer.json()["created_at"] == 3600
            else:
                assert refused(answer) == (400, "invalid_request", "expires_after")
                message = answer.json()["error"]["message"]
                assert f"\"{anchor.decode()}\" and '{seconds.decode()}' seconds;" in message


@on_loop
async def test_a_batch_is_made_listed_and_cancelled(tmp_path: Path) -> None:
    async with place(tmp_path) as it:
        it.desk.calls.closed = {1}
        file = (await it.upload(PURPOSE + FILE % requests([1]) + END)).json()["id"]
        body = {
            "input_file_id": file, "endpoint": "/v1/embeddings", "completion_window": "24h",
            "metadata": {"a": "b"},
            "output_expires_after": {"anchor": "created_at", "seconds": 3600},
        }  # fmt: skip
        made = (await it.http.post("/v1/batches", json=body)).json()
        assert (made["object"], made["status"], made["metadata"]) == (
            "batch", "validating", {"a": "b"},
        )  # fmt: skip
        assert made["expires_at"] - made["created_at"] == 24 * 3600
        path = f"/v1/batches/{made['id']}"
        listed = (await it.http.get("/v1/batches", params={"limit": 1})).json()
        assert (listed["first_id"], listed["has_more"]) == (made["id"], False)
        ended = (await it.http.post(f"{path}/cancel")).json()
        assert ended["status"] in ("cancelling", "cancelled")
        assert (await it.http.get(path)).json()["cancelling_at"] is not None
        for change, param in (
            ({"completion_window": "1h"}, "completion_window"),
            ({"endpoint": "/v1/responses"}, "endpoint"),
            ({"input_file_id": "file-0"}, "input_file_id"),
            ({"input_file_id": None}, "input_file_id"),
            ({"metadata": {"a": 1}}, "metadata.a"),
            ({"metadata": {"a": "x" * 513}}, "metadata"),
            ({"metadata": {str(n): "" for n in range(17)}}, "metadata"),
            ({"output_expires_after": {"anchor": "x", "seconds": 3600}}, "output_expires_after"),
            ({"more": 1}, "more"),
        ):
            answer = await it.http.post("/v1/batches", json=body | change)
            status, code, found = refused(answer)
            assert status in (400, 404)
            assert code in ("invalid_request", "not_found")
            assert (found or "").startswith(param.partition(".")[0]), answer.text
        packed, coding = gzip.compress(b'{"endpoint": 1}'), {"content-encoding": "gzip"}
        answer = await it.http.post("/v1/batches", content=packed, headers=coding)
        assert refused(answer) == (400, "invalid_request", "input_file_id")
        bomb = gzip.compress(bytes(1 << 24))
        answer = await it.http.post("/v1/batches", content=bomb, headers=coding)
        assert refused(answer) == (413, "too_large", None)
        answer = await it.http.post("/v1/batches", content=b"[" * 1000)
        assert refused(answer)[:2] == (400, "invalid_request")


@pytest.mark.parametrize(
    ("path", "param"),
    [
        ("/v1/files?limit=0", "limit"),
        ("/v1/files?limit=10001", "limit"),
        ("/v1/files?limit=x", "limit"),
        ("/v1/files?order=up", "order"),
        ("/v1/files?after=file-1", "after"),
        ("/v1/batches?limit=101", "limit"),
        ("/v1/batches?after=x", "after"),
        ("/v1/batches/x", "id"),
        ("/v1/files/%2e%2e%2fbatches.db", None),
        ("/v1/files/..%2fbatches.db/content", None),
    ],
)
@on_loop
async def test_a_wrong_question_names_its_member(
    tmp_path: Path, path: str, param: str | None
) -> None:
    async with place(tmp_path) as it:
        status, code, found = refused(await it.http.get(path))
        assert status in (400, 404), json.dumps(code)
        assert found == param
