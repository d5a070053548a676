"""Tagged tasks over HTTP while everything dies: sent again until accepted, asked for until ended.

A submission whose answer was lost is sent again with its Idempotency-Key, so it must be the same
task. Every result is checked whole; an accepted task that is not there any more is lost.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from bench.chaos.tagged import ROWS_MOST, WIDTH, is_right, rows_of

MODEL = "tagged"
_PAUSE_S = 0.05
_WAIT_S = 10
_AGAIN = (502, 503, 507)
_DTYPES = {"INT64": np.int64, "FP32": np.float32}


@dataclass
class TaskAccount:
    """The ends of tasks by kind: `right` for a right result, else what was wrong. again: answers
    after which a request was sent again. took_s: from the first try to the result."""

    ends: Counter[str] = field(default_factory=Counter)
    again: Counter[str] = field(default_factory=Counter)
    took_s: list[float] = field(default_factory=list)
    paths: dict[int, str] = field(default_factory=dict)
    failed: set[int] = field(default_factory=set)  # tags of tasks that failed


class _Line:
    """One connection, made again whenever it breaks."""

    def __init__(self, port: int, account: TaskAccount) -> None:
        self._port = port
        self._account = account
        self._stream: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, request: bytes) -> tuple[int, dict[str, str], bytes]:
        """The answer to a request that may be sent again; tried until there is one."""
        while True:
            try:
                return await self._ask(request)
            except (OSError, asyncio.IncompleteReadError):
                self._account.again["connection broke"] += 1
                self.close()
                await asyncio.sleep(_PAUSE_S)

    async def _ask(self, request: bytes) -> tuple[int, dict[str, str], bytes]:
        if self._stream is None:
            self._stream = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._stream
        writer.write(request)
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        fields = dict(line.lower().split(": ", 1) for line in head[1:] if line)
        body = await reader.readexactly(int(fields.get("content-length", "0")))
        if fields.get("connection") == "close":
            self.close()
        return int(head[0].split()[1]), fields, body

    def close(self) -> None:
        if self._stream is not None:
            self._stream[1].close()
            self._stream = None


def submission(tag: int) -> bytes:
    """The request of the task with this tag."""
    rows = rows_of(tag)
    n = len(rows["tag"])
    inputs = [
        {"name": "tag", "datatype": "INT64", "shape": [n], "data": rows["tag"].tolist()},
        {"name": "x", "datatype": "FP32", "shape": [n, WIDTH], "data": rows["x"].ravel().tolist()},
    ]
    body = msgspec.json.encode({"inputs": inputs})
    head = (
        f"POST /v2/models/{MODEL}/infer HTTP/1.1\r\nhost: x\r\nprefer: respond-async\r\n"
        f"idempotency-key: tag-{tag}\r\nx-client-id: {tag % 4}\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def outputs_of(body: bytes) -> dict[str, Any]:
    """The arrays in an answer."""
    return {
        tensor["name"]: np.array(tensor["data"], _DTYPES[tensor["datatype"]]).reshape(
            tensor["shape"]
        )
        for tensor in msgspec.json.decode(body)["outputs"]
    }


async def submit(line: _Line, tag: int, account: TaskAccount) -> str:
    """The path of the task with this tag; "" where it was refused for good."""
    request = submission(tag)
    while True:
        status, fields, body = await line.ask(request)
        if status == 202:
            account.paths[tag] = fields["location"]
            return fields["location"]
        if status not in _AGAIN:
            account.ends[f"refused {status}: {body[:80]!r}"] += 1
            return ""
        account.again[str(status)] += 1
        await asyncio.sleep(_PAUSE_S)


async def collect(line: _Line, tag: int, path: str, account: TaskAccount) -> None:
    """Wait for the result of a task and check it."""
    request = f"GET {path}/result?wait_s={_WAIT_S} HTTP/1.1\r\nhost: x\r\n\r\n".encode()
    while True:
        status, _, body = await line.ask(request)
        if status in _AGAIN:
            account.again[str(status)] += 1
            await asyncio.sleep(_PAUSE_S)
        elif status != 202:
            break
    if status == 200:
        account.ends["right" if is_right(tag, outputs_of(body)) else "WRONG"] += 1
    elif status in (404, 410):
        account.ends["LOST"] += 1
    else:
        account.failed.add(tag)
        account.ends[f"failed: {msgspec.json.decode(body).get('code')}"] += 1


async def _send(port: int, tags: Iterator[int], account: TaskAccount, ready: Any) -> None:
    line = _Line(port, account)
    for tag in tags:
        begun_s = time.monotonic()
        path = await submit(line, tag, account)
        if path:
            await ready.put((tag, path, begun_s))
    line.close()


async def _collect(port: int, account: TaskAccount, ready: Any) -> None:
    line = _Line(port, account)
    while (found := await ready.get()) is not None:
        tag, path, begun_s = found
        await collect(line, tag, path, account)
        account.took_s.append(time.monotonic() - begun_s)
    line.close()


async def submit_all(port: int, tags: range, connections: int) -> TaskAccount:
    """Have these tasks accepted, and leave them."""
    account = TaskAccount()
    own = iter(tags)

    async def one() -> None:
        line = _Line(port, account)
        for tag in own:
            await submit(line, tag, account)
        line.close()

    await asyncio.gather(*(one() for _ in range(connections)))
    return account


async def collect_all(port: int, account: TaskAccount, connections: int) -> None:
    """Collect the results of what was accepted."""
    ready: asyncio.Queue[Any] = asyncio.Queue()
    now_s = time.monotonic()
    for tag, path in account.paths.items():
        ready.put_nowait((tag, path, now_s))
    for _ in range(connections):
        ready.put_nowait(None)
    await asyncio.gather(*(_collect(port, account, ready) for _ in range(connections)))


async def replayed_tags(port: int, ids: Sequence[str]) -> list[int]:
    """The tags of tasks by their right results; -1 for one that has none."""
    line, found = _Line(port, TaskAccount()), []
    for identifier in ids:
        status = 202
        while status == 202:
            url = f"/v2/tasks/{identifier}/result?wait_s={_WAIT_S}"
            status, _, body = await line.ask(f"GET {url} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
        outputs = outputs_of(body) if status == 200 else {}
        tag = int(outputs["of"][0]) // ROWS_MOST if outputs else -1
        found.append(tag if outputs and is_right(tag, outputs) else -1)
    line.close()
    return found


async def submit_and_collect(port: int, tags: range, connections: int, window: int) -> TaskAccount:
    """Both at once, with at most about `window` tasks that were not collected yet."""
    account = TaskAccount()
    ready: asyncio.Queue[Any] = asyncio.Queue(window)
    own = iter(tags)
    collectors = [asyncio.create_task(_collect(port, account, ready)) for _ in range(connections)]
    await asyncio.gather(*(_send(port, own, account, ready) for _ in range(connections)))
    for _ in collectors:
        await ready.put(None)
    await asyncio.gather(*collectors)
    return account
