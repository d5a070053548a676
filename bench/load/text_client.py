"""A local client that embeds texts; a child that a benchmark tells what to do.

    python -m bench.load.text_client FOLDER SOCKET

FOLDER holds texts and right vectors (bench/embed/texts_file.py). `windows`: one `infer` of `window`
texts after the other. `singles`: `window` texts under way, each asked for by itself. Each vector is
compared with the right one.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import uvloop

import batchpool as bp
from bench.embed.texts_file import Known
from bench.support.children import obey, wait_until

_MODEL = "minilm"


def windows(known: Known, socket: str, message: dict[str, Any]) -> int:
    """The texts answered within the time."""
    window, end_ns = message["window"], message["start_ns"] + int(message["seconds"] * 1e9)
    rng = np.random.default_rng(message["start_ns"])
    done = 0
    with bp.Client(socket, timeout_s=60) as pool:
        wait_until(message["start_ns"])
        while time.monotonic_ns() < end_ns:
            at = int(rng.integers(0, len(known.texts) - window))
            rows = list(range(at, at + window))
            found = pool.infer(_MODEL, text=known.texts[at : at + window])["embedding"]
            known.check_all(rows, found)
            done += window
    return done


async def singles(known: Known, socket: str, message: dict[str, Any]) -> int:
    """The texts answered within the time."""
    end_ns = message["start_ns"] + int(message["seconds"] * 1e9)
    rng = np.random.default_rng(message["start_ns"])
    done = 0
    async with bp.AsyncClient(socket, timeout_s=60) as pool:

        async def one() -> None:
            nonlocal done
            row = int(rng.integers(0, len(known.texts)))
            while time.monotonic_ns() < end_ns:
                row = (row + 1) % len(known.texts)
                found = await pool.infer(_MODEL, text=[known.texts[row]])
                known.check(row, found["embedding"][0])
                done += 1

        wait_until(message["start_ns"])
        await asyncio.gather(*(one() for _ in range(message["window"])))
    return done


def main() -> None:
    known, socket = Known.read(Path(sys.argv[1])), sys.argv[2]

    def answer(message: dict[str, Any]) -> dict[str, Any]:
        if message["do"] == "windows":
            return {"texts": windows(known, socket, message)}
        return {"texts": uvloop.run(singles(known, socket, message))}

    obey(answer)


if __name__ == "__main__":
    main()
