"""The heads that loads send: what differs in them, and that all of them say the same."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import httptools
import pytest

from bench.load.heads import AGENT, BOTH, DIFFERING, EQUAL, Requests, kinds

LOAD = Path(__file__).parents[2] / "bench" / "load"
FIELDS = {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": "0"}
SIZE = 16
BODY = b"\r\n\r\n" * 4


@dataclass
class Heard:
    """One request as a parser reads it."""

    url: bytes = b""
    body: bytes = b""
    fields: list[tuple[bytes, bytes]] = field(default_factory=list)

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.fields.append((name, value))

    def on_body(self, body: bytes) -> None:
        self.body += body

    @property
    def headers(self) -> dict[bytes, bytes]:
        return dict(self.fields)


def heard(sent: bytes) -> Heard:
    found = Heard()
    httptools.HttpRequestParser(found).feed_data(sent)
    return found


def check_differing(requests: list[Heard], ids: int) -> None:
    """Every id once, two orders, everything else alike."""
    assert len({each.headers[b"X-Request-Id"] for each in requests}) == ids
    orders = {tuple(name for name, _ in each.fields) for each in requests}
    assert len(orders) == 2
    for each in requests:
        headers = each.headers
        assert len(headers) == len(each.fields)
        assert headers[b"User-Agent"] == AGENT.encode()
        assert headers[b"Inference-Header-Content-Length"] == b"0"
        assert headers[b"Content-Type"] == b"application/octet-stream"
        assert each.body == BODY
        assert each.url == b"/infer"


def test_each_has_its_id_and_two_orders_take_turns() -> None:
    makers = [Requests("/infer", FIELDS, SIZE, number, DIFFERING) for number in range(2)]
    requests = [heard(maker.head() + BODY) for maker in makers for _ in range(5)]
    check_differing(requests, 10)


def test_equal_heads_are_equal() -> None:
    maker = Requests("/infer", FIELDS, SIZE, 3, EQUAL)
    assert maker.head() == maker.head()
    assert b"X-Request-Id" not in heard(maker.head() + BODY).headers


def test_the_kinds_of_a_run() -> None:
    assert kinds(BOTH) == (DIFFERING, EQUAL)
    assert kinds(EQUAL) == (EQUAL,)


@pytest.mark.skipif(shutil.which("wrk") is None, reason="wrk is not installed")
@pytest.mark.parametrize("kind", [DIFFERING, EQUAL])
def test_the_heads_of_wrk(kind: str, tmp_path: Path) -> None:
    (tmp_path / "body").write_bytes(BODY)
    requests: list[Heard] = []
    told = asyncio.run(answered(requests, kind, tmp_path))
    assert told["wrong"] == told["other"] == told["broken"] == 0
    assert told["right"] > 10
    if kind == DIFFERING:
        check_differing(requests, len(requests))
    else:
        assert len({tuple(each.fields) for each in requests}) <= 2, "one for each thread of wrk"


async def answered(requests: list[Heard], kind: str, folder: Path) -> dict[str, int]:
    """The figures of wrk after a second with a server that answers with the body."""
    end = b"\r\n\r\n" + BODY

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                requests.append(heard(head + await reader.readexactly(SIZE)))
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d" % SIZE + end)
        except (asyncio.IncompleteReadError, OSError):
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    env = os.environ | {
        "TALLY": str(LOAD / "wrk_tally.lua"),
        "BODY": str(folder / "body"),
        "EXPECTED": str(folder / "body"),
        "HEADERS": "\n".join(f"{name}: {value}" for name, value in FIELDS.items()),
        "HEADS": kind,
        "AGENT": AGENT,
    }
    script = str(LOAD / "wrk_check.lua")
    command = ["wrk", "-t2", "-c4", "-d1s", "-s", script, f"http://127.0.0.1:{port}/infer"]
    wrk = await asyncio.create_subprocess_exec(*command, env=env, stdout=asyncio.subprocess.PIPE)
    out, _ = await wrk.communicate()
    server.close()
    line = next(text for text in out.decode().splitlines() if text.startswith("JSON "))
    found: dict[str, int] = json.loads(line[5:])
    return found
