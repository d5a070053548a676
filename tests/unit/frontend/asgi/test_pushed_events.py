"""Events that go out without a task that wakes: of tokens, of texts, and to whom they do not."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest

import batchpool as bp
from batchpool.frontend.http.body_writer import BodyWriter
from batchpool.frontend.http.connection import Connection
from batchpool.frontend.http.connection_limits import ConnectionLimits
from tests.lazy import library
from tests.unit.frontend.asgi.test_generate import EVENTS, assert_all_free, body, streaming
from tests.unit.frontend.frontend_double import calling, edge, request, serving
from tests.unit.frontend.http.test_waits import deaf_socket
from tests.unit.frontend.loops import on_loop, until
from tests.unit.frontend.story_double import Story
from tests.unit.frontend.text_story import tale


@pytest.fixture
def pushed(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The pieces that were written around ASGI's send."""
    pieces: list[bytes] = []
    write = BodyWriter.write

    def noted(writer: BodyWriter, piece: bytes) -> None:
        pieces.append(piece)
        write(writer, piece)

    monkeypatch.setattr(BodyWriter, "write", noted)
    return pieces


@on_loop
async def test_tokens_behind_the_first_are_pushed_and_the_end_is_sent(
    pushed: list[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="batchpool")
    async with edge(Story, server={"access_log": "all"}) as it:
        it.pool.hold = True
        async with streaming(it, max_tokens=4) as caller:
            story = it.pool.stories["story"]
            await until(lambda: bool(story.running), "it runs")
            size = 0
            for token in (11, 12, 13, 14):
                story.step()
                sent = await caller.reader.readuntil(b"}\n\n")
                assert b'"token":[%d]' % token in sent
                size += len(sent[sent.index(b"data: ") :])
            assert [json.loads(piece[6:])["token"] for piece in pushed] == [[12], [13]]
            await caller.reader.readuntil(b"0\r\n\r\n")
        assert_all_free(it)
    (line,) = (record.args for record in caplog.records if record.name == "batchpool.access")
    assert isinstance(line, dict)
    assert (line["tokens"], line["bytes_out"]) == (4, size)


@pytest.mark.parametrize("path", ["/v2/models/tale/generate_stream", "/v1/completions"])
@on_loop
async def test_texts_are_pushed_up_to_a_stop_string(
    path: str, pushed: list[bytes], tmp_path: Path
) -> None:
    library("tokenizers")
    async with edge(tale(tmp_path)) as it, serving(it) as site:
        it.pool.hold = True
        asked: dict[str, Any] = {"max_tokens": 60, "stop": "ef", "stream": True}
        if path.startswith("/v2"):
            asked |= {"text_input": "a"}
        else:
            asked |= {"model": "tale", "prompt": "a"}
        async with calling(site) as caller:
            await caller.send(request(path, json.dumps(asked).encode()))
            rows = it.pool.stories["tale"]
            await until(lambda: bool(rows.running), "it runs")
            for letter in (b"b", b"c", b"d"):
                rows.step()
                await caller.reader.readuntil(b'"%b"' % letter)
            assert len(pushed) == 2
            rows.step()  # "e" may be the begin of the stop string
            await asyncio.sleep(0.01)
            rows.step()
            end = await caller.reader.readuntil(b"0\r\n\r\n")
            assert b'"finish_reason":"stop"' in end
            assert b'"e' not in end.replace(b'"event', b"").replace(b'"error', b"")
            assert len(pushed) == 2, "neither what is held back nor the end"
            await until(lambda: not rows.running, "its place is free")


class LongStory(Story):
    token = bp.Tensor("token", "int32", (1 << 14,))


@on_loop
async def test_nothing_is_pushed_to_a_caller_that_takes_no_byte(pushed: list[bytes]) -> None:
    async with edge(LongStory, slots=4) as it, serving(it, ConnectionLimits(stall_s=1.0)) as site:
        it.pool.hold = True
        story = it.pool.stories["longstory"]
        with deaf_socket(site) as deaf:
            asked = json.dumps({"prompt": [1_000_001]}).encode()  # tokens of many digits
            deaf.sendall(request("/v2/models/longstory/generate_stream", asked))
            await until(lambda: bool(story.running), "it runs")
            (connection,) = site.server.server_state.connections
            assert isinstance(connection, Connection)
            while not connection.flow.write_paused:
                assert story.running[0].made < 90, "it is never told to wait"
                story.step()
                await asyncio.sleep(0.001)
            assert pushed
            n, held = len(pushed), connection.transport.get_write_buffer_size()
            for _ in range(3):
                story.step()
                await asyncio.sleep(0.001)
            assert len(pushed) == n
            assert connection.transport.get_write_buffer_size() <= held
            await until(lambda: not story.running, "its row is cancelled")


class WideStory(Story):
    token = bp.Tensor("token", "int32", (1 << 15,))
    max_tokens = 64


@on_loop
async def test_tokens_that_take_long_to_write_are_written_in_the_thread(
    pushed: list[bytes],
) -> None:
    async with edge(WideStory) as it, serving(it) as site, calling(site) as caller:
        it.pool.hold = True
        story = it.pool.stories["widestory"]
        path = EVENTS.replace("story", "widestory")
        await caller.send(request(path, json.dumps(body(max_tokens=3)).encode()))
        await until(lambda: bool(story.running), "it runs")
        for token in (b"11", b"12", b"13"):
            story.step()
            await caller.reader.readuntil(b",%b]" % token)
        await caller.reader.readuntil(b"0\r\n\r\n")
        assert pushed == []
