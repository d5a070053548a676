"""The load of bench.chaos: processes that send tagged requests and account for every one.

    python -m bench.chaos.load http|async|sync WHERE NUMBER RATE SECONDS
    python -m bench.chaos.load mortal SOCKET NUMBER

WHERE is the port (http) or the pool's socket. The first three send at a fixed rate whatever
becomes of the answers, and print their account as JSON. Only refusals (503, after the time
they name) and broken connections are sent again. `mortal` calls without pause until its
standard input closes, unless it dies before.
"""

from __future__ import annotations

import asyncio
import json
import select
import sys
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import batchpool as bp
from batchpool.core.errors import PoolError, Retryable
from bench.chaos.tagged import is_right, rows_of

MODEL = "tagged"
DEADLINE_S = 5.0
GRACE_S = 1.0  # what the client's own loop may take beyond the deadline
TAGS_EACH = 10**9
_CALLS_EACH = 100  # of one connection: a new front end gets its share again
_RETRY_BROKEN_S = 0.01
_AT_ONCE = 6  # calls of a mortal client under way

Outputs = dict[str, Any]
Call = Callable[[int, float], Awaitable[Outputs]]


class Answered(Exception):
    """An error came back. after_s: when to come again, None if the answer is final."""

    def __init__(self, code: str, after_s: float | None) -> None:
        super().__init__(code)
        self.code = code
        self.after_s = after_s


@dataclass
class Account:
    """The outcomes of the requests. Times: CLOCK_MONOTONIC seconds of right answers.

    answers: over HTTP, by status, also those after which a request was sent again. broken: sent
    over HTTP without an answer, since the connection broke or nobody waited any longer.
    """

    sent: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    retries: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)
    right_at_s: list[float] = field(default_factory=list)
    took_s: list[float] = field(default_factory=list)
    answers: Counter[str] = field(default_factory=Counter)
    broken: int = 0
    latest_send_s: float = 0.0
    started_s: float = 0.0
    ended_s: float = 0.0


class Http:
    """Keep-alive connections to the front ends: one request under way on each."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.answers: Counter[str] = Counter()
        self.broken = 0
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter, int]] = []

    async def call(self, tag: int, left_s: float) -> Outputs:
        """OSError or EOFError when the connection breaks."""
        reader, writer, calls = await self._connection()
        try:
            writer.write(_request(tag, left_s))
            status, headers, body = await _answer(reader)
        except BaseException:
            self.broken += 1
            writer.close()
            raise
        self.answers[str(status)] += 1
        if calls + 1 < _CALLS_EACH and headers.get("connection") != "close":
            self._idle.append((reader, writer, calls + 1))
        else:
            writer.close()
        answer = json.loads(body)
        if status != 200:
            after_s = float(headers["retry-after"]) if status == 503 else None
            raise Answered(answer["code"], after_s)
        found = {
            o["name"]: np.array(o["data"], dtype=float).reshape(o["shape"])
            for o in answer["outputs"]
        }
        return {"of": found["of"], "y": found["y"]}

    async def _connection(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, int]:
        while self._idle:
            reader, writer, calls = self._idle.pop()
            if not (reader.at_eof() or writer.is_closing()):
                return reader, writer, calls
            writer.close()
        return *await asyncio.open_connection("127.0.0.1", self._port), 0

    def close(self) -> None:
        for _, writer, _ in self._idle:
            writer.close()


def _request(tag: int, left_s: float) -> bytes:
    rows = rows_of(tag)
    inputs = [
        {"name": name, "datatype": datatype, "shape": values.shape, "data": values.ravel().tolist()}
        for name, datatype, values in (("tag", "INT64", rows["tag"]), ("x", "FP32", rows["x"]))
    ]
    body = json.dumps({"inputs": inputs}).encode()
    head = (
        f"POST /v2/models/{MODEL}/infer HTTP/1.1\r\nHost: bench\r\n"
        f"Content-Length: {len(body)}\r\nX-Request-Timeout-Ms: {max(1, int(left_s * 1000))}\r\n\r\n"
    )
    return head.encode() + body


async def _answer(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    pairs = (line.partition(":") for line in head[1:] if line)
    headers = {name.lower(): value.strip() for name, _, value in pairs}
    body = await reader.readexactly(int(headers["content-length"]))
    return int(head[0].split()[1]), headers, body


def _answered(exc: PoolError) -> Answered:
    after_s = exc.retry_after_ms / 1000 if isinstance(exc, Retryable) else None
    return Answered(exc.code, after_s)


async def _local_async(pool: bp.AsyncClient, tag: int, left_s: float) -> Outputs:
    try:
        return await pool.infer(MODEL, rows_of(tag), timeout_s=max(left_s, 0.001))
    except PoolError as exc:
        raise _answered(exc) from exc


async def _local_sync(pool: bp.Client, tag: int, left_s: float) -> Outputs:
    try:
        future = pool.submit(MODEL, rows_of(tag), timeout_s=max(left_s, 0.001))
        return await asyncio.wrap_future(future)
    except PoolError as exc:
        raise _answered(exc) from exc


# -- sending and accounting ---------------------------------------------------------------


async def _outcome(call: Call, account: Account, tag: int, deadline_s: float) -> str:
    """Send until there is an answer that is final, or no time to come again."""
    while True:
        left_s = deadline_s - time.monotonic()
        try:
            outputs = await call(tag, left_s)
        except Answered as exc:
            if exc.after_s is None or time.monotonic() + exc.after_s >= deadline_s:
                return exc.code
            account.retries[exc.code] += 1
            await asyncio.sleep(exc.after_s)
        except (OSError, EOFError):
            if time.monotonic() + _RETRY_BROKEN_S >= deadline_s:
                return "connection_lost"
            account.retries["connection_lost"] += 1
            await asyncio.sleep(_RETRY_BROKEN_S)
        else:
            return "right" if is_right(tag, outputs) else "wrong"


async def _request_once(call: Call, account: Account, tag: int) -> None:
    start_s = time.monotonic()
    try:
        async with asyncio.timeout(DEADLINE_S + GRACE_S):
            outcome = await _outcome(call, account, tag, start_s + DEADLINE_S)
    except TimeoutError:
        outcome = "unanswered"
    except Exception as exc:  # it must stand in the account
        outcome = f"unexpected {type(exc).__name__}: {exc}"
    now_s = time.monotonic()
    account.outcomes[outcome] += 1
    if outcome == "right":
        account.right_at_s.append(round(now_s, 4))
        account.took_s.append(round(now_s - start_s, 4))
    elif len(account.examples) < 50:
        account.examples.append(
            f"{now_s:.2f} s: tag {tag}, after {now_s - start_s:.2f} s: {outcome}"
        )


async def drive(call: Call, number: int, rate: float, seconds: float) -> Account:
    """Requests at a fixed rate, none waiting for another; returns when all are accounted for."""
    account = Account(started_s=time.monotonic())
    tasks: set[asyncio.Task[None]] = set()
    while account.sent < rate * seconds:
        due_s = account.started_s + account.sent / rate
        await asyncio.sleep(max(0.0, due_s - time.monotonic()))
        account.latest_send_s = max(account.latest_send_s, time.monotonic() - due_s)
        tag = number * TAGS_EACH + account.sent
        account.sent += 1
        task = asyncio.create_task(_request_once(call, account, tag))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    account.ended_s = time.monotonic()
    await asyncio.gather(*tasks)
    return account


async def run(kind: str, where: str, number: int, rate: float, seconds: float) -> Account:
    if kind == "http":
        http = Http(int(where))
        try:
            account = await drive(http.call, number, rate, seconds)
            account.answers, account.broken = http.answers, http.broken
            return account
        finally:
            http.close()
    if kind == "async":
        async with bp.AsyncClient(where) as pool:
            return await drive(lambda t, left: _local_async(pool, t, left), number, rate, seconds)
    with bp.Client(where) as sync:
        return await drive(lambda t, left: _local_sync(sync, t, left), number, rate, seconds)


# -- clients that are there to die --------------------------------------------------------


def mortal(socket: str, number: int) -> int:
    """Call until the standard input closes; 1 if an answer was wrong. Says when it has begun."""
    under_way: deque[tuple[int, Future[Any]]] = deque()
    outcomes: Counter[str] = Counter()
    tag = number * TAGS_EACH
    begun = False
    with bp.Client(socket) as pool:
        while not select.select([sys.stdin], [], [], 0.005)[0]:
            try:
                under_way.append((tag, pool.submit(MODEL, rows_of(tag), timeout_s=DEADLINE_S)))
            except PoolError as exc:
                outcomes[exc.code] += 1
            tag += 1
            while len(under_way) >= _AT_ONCE:
                outcomes[_settle(*under_way.popleft())] += 1
                if outcomes["right"] and not begun:
                    begun = True
                    print("calling", flush=True)
        while under_way:
            outcomes[_settle(*under_way.popleft())] += 1
    print(json.dumps(outcomes), flush=True)
    return 1 if outcomes["wrong"] else 0


def _settle(tag: int, future: Future[Any]) -> str:
    try:
        outputs = future.result(DEADLINE_S + GRACE_S)
    except PoolError as exc:
        return exc.code
    return "right" if is_right(tag, outputs) else "wrong"


def main() -> int:
    kind, where, number = sys.argv[1:4]
    if kind == "mortal":
        return mortal(where, int(number))
    rate, seconds = map(float, sys.argv[4:6])
    print(json.dumps(vars(asyncio.run(run(kind, where, int(number), rate, seconds)))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
