"""Takes the pictures of the live page that stand in docs/:

    python -m tests.process.page_pictures [FOLDER] [--seconds N] [--port N]

It serves two models under a load that comes and goes, kills a worker, lets a model raise, waits
until the charts are full (two minutes), and writes page-desktop.png and page-phone.png.
"""

from __future__ import annotations

import argparse
import http.client
import json
import math
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.process.browser import browsing
from tests.process.pool_under_test import ROOT, Pool, serving
from tests.process.web import ask

MODELS = (
    {"import": "batchpool.examples.minilm:MiniLM", "max_batch": 32, "slots": 64},
    {"import": "tests.process.page_models:Touchy", "name": "affine", "slots": 128, "attempts": 1},
)
WORDS = ("batches", "of", "many", "callers", "ride", "together", "while", "rings", "stay", "short")
SHADES = {"desktop": (False, 1280, 1130, 1.0), "phone": (True, 360, 760, 2.0)}


def sentence() -> bytes:
    text = " ".join(random.choices(WORDS, k=random.randint(2, 12)))
    tensor = {"name": "text", "datatype": "BYTES", "shape": [1], "data": [text]}
    return json.dumps({"inputs": [tensor]}).encode()


def numbers(value: float = 1) -> bytes:
    n = random.choice((1, 1, 1, 2, 4, 7))
    tensor = {"name": "x", "datatype": "FP32", "shape": [n, 4], "data": [value] * 4 * n}
    return json.dumps({"inputs": [tensor]}).encode()


@contextmanager
def load(pool: Pool) -> Iterator[None]:
    """Callers of both models, some of whom rest now and then."""
    over = threading.Event()

    def call(model: str, number: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", pool.port)
        while not over.is_set():
            body = sentence() if model == "minilm" else numbers()
            connection.request("POST", f"/v2/models/{model}/infer", body)
            connection.getresponse().read()
            rest = 1 + math.sin(time.monotonic() / 9 + number / 3)
            over.wait(0.01 * rest * rest)
        connection.close()

    threads = [
        threading.Thread(target=call, args=(model, number))
        for model, many in (("minilm", 6), ("affine", 4))
        for number in range(many)
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "docs")
    parser.add_argument("--seconds", type=float, default=125, help="how long the charts are filled")
    parser.add_argument("--port", type=int, default=8000, help="of the pool")
    args = parser.parse_args()
    args.folder.mkdir(exist_ok=True)
    with browsing() as browser, serving(*MODELS, server={"frontends": 2}, port=args.port) as pool:
        pool.tracebacks_expected = True
        pages = {}
        for name, (dark, width, height, scale) in SHADES.items():
            pages[name] = browser.open(f"http://127.0.0.1:{pool.port}/")
            pages[name].show(width=width, height=height, dark=dark, scale=scale)
        with load(pool):
            time.sleep(args.seconds / 2)
            os.kill(pool.pids("worker 0 of affine")[0], signal.SIGKILL)
            ask(pool, "/v2/models/affine/infer", numbers(-1))
            time.sleep(args.seconds / 2)
            for name, page in pages.items():
                page.wait("document.getElementById('link').dataset.link === 'live'")
                picture = page.picture()
                (args.folder / f"page-{name}.png").write_bytes(picture)
                print(f"page-{name}.png: {len(picture) / 1000:.0f} kB")


if __name__ == "__main__":
    main()
