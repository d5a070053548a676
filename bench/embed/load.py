"""The load of a run: so many requests under way, each vector checked.

    python -m bench.embed.load FOLDER

A child that the run tells what to do: `http` sends one text a request on keep-alive connections,
with a head of its own each; `local` does the same through one bp.AsyncClient.
"""

from __future__ import annotations

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
from bench.load.closed_loop import ClosedLoop
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
    """The vector is the last of the outputs."""
    length = int(head.lower().partition(b"inference-header-content-length:")[2].split()[0])
    *_, last = json.loads(body[:length])["outputs"]
    return np.frombuffer(body[-last["parameters"]["binary_data_size"] :], np.float32)


def parse_embeddings(head: bytes, body: bytes) -> Vectors:
    (found,) = json.loads(body)["data"]
    return np.frombuffer(base64.b64decode(found["embedding"]), np.float32)


FORMS: dict[str, tuple[Callable[[str], dict[str, Any]], Parse]] = {
    "infer": (infer_body, parse_infer),
    "embeddings": (embeddings_body, parse_embeddings),
}


async def over_http(known: Known, message: dict[str, Any]) -> dict[str, Any]:
    make_body, parse = FORMS[message["form"]]
    loop = ClosedLoop(len(known.texts), message["at_once"], message["seconds"], known.check)
    bodies = [json.dumps(make_body(text.decode())).encode() for text in known.texts]
    return await loop.run_http(message["port"], message["path"], _HEADERS, bodies, parse)


async def by_client(known: Known, message: dict[str, Any]) -> dict[str, Any]:
    load = ClosedLoop(len(known.texts), message["at_once"], message["seconds"], known.check)
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
