"""The cost of bad inputs to other callers: MiniLM with 14 texts of 100 that are no UTF-8.

    python -m bench.bad_inputs [--rounds 3] [--seconds 15] [--save FILE.json]

One caller sends 100 texts at once over HTTP, again and again; four neighbours send one text ten
times a second each. The load runs in turns with good texts only and with 14 bad ones among the
hundred. Checked: 86 answers and 14 times 400 with the offset of the bad byte each time, every
vector of the neighbours, and that no row ran again, no batch failed and no worker was restarted.
The figure is the neighbours' p99 beside bad texts, as a multiple of that beside good ones.
"""

from __future__ import annotations

import argparse
import http.client
import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from batchpool.client.control import ask_status
from bench.support.machine import percentile, report, spread
from bench.support.serving import Served, serving

MODEL = "batchpool.examples.minilm:MiniLM"
TEXTS, BAD_OF_THEM = 100, range(0, 98, 7)  # 14
SENDERS, PAUSE_S = 25, 1.0  # of the caller with a hundred texts
NEIGHBOURS, EVERY_S = 4, 0.1
BAD = b"kind of text that is cut in the middle of a " + "ö".encode()[:1]
OFFSET = len(BAD) - 1
WIDTH = 384


def ask(served: Served, caller: str, text: bytes) -> tuple[int, bytes]:
    """(status, body) of one raw request on a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=60)
    headers = {"Inference-Header-Content-Length": "0", "X-Client-Id": caller}
    try:
        connection.request("POST", "/v2/models/minilm/infer", text, headers)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def vector(body: bytes) -> Any:
    """The embedding at the end of a binary answer."""
    return np.frombuffer(body[-4 * WIDTH :], np.float32)


class Load:
    """The caller with a hundred texts and its neighbours, for some seconds."""

    def __init__(self, served: Served, seconds: float, *, bad: bool) -> None:
        self._served = served
        self._until = time.monotonic() + seconds
        self._bad = bad
        self._wrong: list[str] = []
        self.took_ms: list[float] = []
        self.hundreds = 0

    def run(self) -> None:
        """Run to the end; RuntimeError names what was wrong."""
        threads = [threading.Thread(target=self._neighbour, args=(i,)) for i in range(NEIGHBOURS)]
        threads.append(threading.Thread(target=self._send_hundreds))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self._wrong:
            raise RuntimeError(f"{len(self._wrong)} answers were wrong; first: {self._wrong[0]}")

    def _neighbour(self, number: int) -> None:
        text = f"a short text of neighbour {number}".encode()
        right = None
        while (began_s := time.monotonic()) < self._until:
            status, body = ask(self._served, f"neighbour {number}", text)
            self.took_ms.append((time.monotonic() - began_s) * 1e3)
            found = vector(body)
            right = found if right is None else right
            if status != 200 or not np.allclose(found, right, atol=1e-4):
                self._wrong.append(f"a neighbour got {status}: {body[:200]!r}")
            time.sleep(max(0.0, began_s + EVERY_S - time.monotonic()))

    def _send_hundreds(self) -> None:
        with ThreadPoolExecutor(SENDERS) as senders:
            while time.monotonic() < self._until:
                for _ in senders.map(self._send_one, range(TEXTS)):
                    pass
                self.hundreds += 1
                time.sleep(PAUSE_S)

    def _send_one(self, number: int) -> None:
        bad = self._bad and number in BAD_OF_THEM
        text = BAD if bad else f"kind of text that has the number {number}".encode()
        status, body = ask(self._served, "hundred", text)
        if not bad:
            if status != 200 or abs(float(np.linalg.norm(vector(body))) - 1) > 1e-3:
                self._wrong.append(f"a good text got {status}: {body[:200]!r}")
            return
        answer = json.loads(body) if status == 400 else {}
        if answer.get("details") != {"offset": OFFSET} or f"byte {OFFSET}" not in answer["error"]:
            self._wrong.append(f"a bad text got {status}: {body[:200]!r}")


def counts(served: Served) -> dict[str, int]:
    """The counts that must stay 0, and the refused rows."""
    status = ask_status(served.socket)
    model = status["models"]["minilm"]
    found = {name: model[name] for name in ("invalid", "retried", "failed", "lost")}
    found["restarts"] = sum(process["restarts"] for process in status["processes"])
    return found


def measure(rounds: int, seconds: float) -> Iterator[tuple[float, float, int]]:
    """The neighbours' p99 in ms beside good and beside bad texts, and the bad texts, by round."""
    with serving([MODEL], "--devices", "cpu", "--frontends", "1") as served:
        Load(served, 3, bad=True).run()
        for _ in range(rounds):
            p99_ms = []
            before = counts(served)
            for bad in (False, True):
                load = Load(served, seconds, bad=bad)
                load.run()
                p99_ms.append(percentile(load.took_ms, 0.99))
            after = counts(served)
            refused = after.pop("invalid") - before["invalid"]
            if refused != load.hundreds * len(BAD_OF_THEM) or any(after.values()):
                raise RuntimeError(f"{refused} texts refused in {load.hundreds} hundreds; {after}")
            yield p99_ms[0], p99_ms[1], refused


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--save")
    args = parser.parse_args()
    found = list(measure(args.rounds, args.seconds))
    rows: dict[str, Any] = {
        "neighbours' p99 beside good texts, ms": spread([good for good, _, _ in found], 1),
        "neighbours' p99 beside bad texts, ms": spread([bad for _, bad, _ in found], 1),
        "multiple": spread([bad / good for good, bad, _ in found], 2),
        "texts refused": sum(refused for _, _, refused in found),
        "rows run again, batches failed, restarts": 0,
    }
    report(f"MiniLM, {len(BAD_OF_THEM)} of {TEXTS} texts are no UTF-8", rows, args.save)


if __name__ == "__main__":
    main()
