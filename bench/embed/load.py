"""The load of a run: so many requests under way, each vector checked.

    python -m bench.embed.load FOLDER

A child that the run tells what to do: `http` sends one text a request on keep-alive connections,
with a head of its own each; `local` does the same through one bp.AsyncClient.
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import uvloop

import batchpool as bp
from bench.embed.texts_file import Known, Vectors
from bench.load.heads import DIFFERING, Requests
from bench.support.children import obey

_HEADERS = {"Content-Type": "application/json"}
Parse = Callable[[bytes, bytes], Vectors]


def infer_body(text: str) -> dict[str, Any]:
    """Of the Open Inference Protocol, whose answer is to be binary."""
    tensor = {"name": "text", "shape": [1], "datatype": "BYTES", "data": [text]}
    return {"inputs": [tensor], "parameters": {"binary_data_output": True}}


def embeddings_body(text: str) -> dict[str, Any]:
    """Of OpenAI's API, whose numbers are to be base64."""
    return {"model": "minilm", "input": [text], "encoding_format": "base64"}


def parse_infer(head: bytes, body: bytes) -> Vectors:
    length = head.lower().partition(b"inference-header-content-length:")[2].split()[0]
    return np.frombuffer(body, np.float32, offset=int(length))


def parse_embeddings(head: bytes, body: bytes) -> Vectors:
    (found,) = json.loads(body)["data"]
    return np.frombuffer(base64.b64decode(found["embedding"]), np.float32)


FORMS: dict[str, tuple[Callable[[str], dict[str, Any]], Parse]] = {
    "infer": (infer_body, parse_infer),
    "embeddings": (embeddings_body, parse_embeddings),
}


class _Load:
    """One turn. took_ms: of each answer."""

    def __init__(self, known: Known, at_once: int, seconds: float) -> None:
        self._known, self._at_once, self._seconds = known, at_once, seconds
        self._until_s = 0.0
        self._row = 0
        self.took_ms: list[float] = []

    async def run(self, one: Callable[[int], Any]) -> dict[str, Any]:
        """All callers until the time is over. one: a caller, by its number."""
        begun_s = time.monotonic()
        self._until_s = begun_s + self._seconds
        await asyncio.gather(*(one(number) for number in range(self._at_once)))
        return {
            "texts": len(self.took_ms),
            "seconds": time.monotonic() - begun_s,
            "took_ms": self.took_ms,
        }

    def next_row(self) -> int | None:
        """The next text; None when the time is over."""
        if time.monotonic() >= self._until_s:
            return None
        self._row = (self._row + 1) % len(self._known.texts)
        return self._row

    def answered(self, row: int, since_s: float, vector: Vectors) -> None:
        self.took_ms.append(round((time.perf_counter() - since_s) * 1e3, 3))
        self._known.check(row, vector)


async def over_http(known: Known, message: dict[str, Any]) -> dict[str, Any]:
    make_body, parse = FORMS[message["form"]]
    load = _Load(known, message["at_once"], message["seconds"])
    bodies = [json.dumps(make_body(text.decode())).encode() for text in known.texts]
    path = message["path"]
    heads = [
        Requests(path, _HEADERS, len(body), number, DIFFERING) for number, body in enumerate(bodies)
    ]

    async def one(number: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", message["port"])
        while (row := load.next_row()) is not None:
            since_s = time.perf_counter()
            writer.write(heads[row].head() + bodies[row])
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"\ncontent-length:")[2].split()[0])
            body = await reader.readexactly(length)
            if not head.startswith(b"HTTP/1.1 200"):
                raise RuntimeError(f"{path} answered {head[:80]!r} {body[:300]!r}")
            load.answered(row, since_s, parse(head, body))
        writer.close()

    return await load.run(one)


async def by_client(known: Known, message: dict[str, Any]) -> dict[str, Any]:
    load = _Load(known, message["at_once"], message["seconds"])
    async with bp.AsyncClient(message["socket"]) as pool:

        async def one(number: int) -> None:
            while (row := load.next_row()) is not None:
                since_s = time.perf_counter()
                found = await pool.infer("minilm", text=[known.texts[row]])
                load.answered(row, since_s, found["embedding"][0])

        return await load.run(one)


def main() -> None:
    known = Known.read(Path(sys.argv[1]))

    def answer(message: dict[str, Any]) -> dict[str, Any]:
        kind = over_http if message["do"] == "http" else by_client
        return uvloop.run(kind(known, message))

    obey(answer)


if __name__ == "__main__":
    main()
