"""HTTP requests per second with wrk, every answer compared whole; beside it a bare echo.

    python -m bench.http [--connections 1 64 256] [--rounds 3] [--seconds 4]
                         [--heads differing|equal|both] [--save FILE.json]

2 KB in and 2 KB out, y = 2x + 1, raw bodies, one row per request; interleaved with a uvicorn
ASGI application that echoes the body and runs no model. Each request has a head of its own
(bench/load/heads.py) unless told otherwise. Needs `wrk` (Debian's package).
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np

from bench.load import heads as load_heads
from bench.support.machine import report, spread
from bench.support.models import WIDTH
from bench.support.serving import free_port, serving

_LUA = Path(__file__).parent / "load" / "wrk_check.lua"
_TALLY = Path(__file__).parent / "load" / "wrk_tally.lua"


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """The alternative: uvicorn with no framework and no model."""
    body = b""
    more = True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def run_wrk(
    url: str,
    body: bytes,
    expected: bytes,
    headers: dict[str, str],
    connections: int,
    seconds: float,
    heads: str = load_heads.DIFFERING,
) -> dict[str, Any]:
    """One wrk run; SystemExit for a wrong or a broken answer. heads: their kind."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "body").write_bytes(body)
        (Path(folder) / "expected").write_bytes(expected)
        env = {
            "TALLY": str(_TALLY),
            **os.environ,
            "BODY": f"{folder}/body",
            "EXPECTED": f"{folder}/expected",
            "HEADS": heads,
            "AGENT": load_heads.AGENT,
            "HEADERS": "\n".join(f"{k}: {v}" for k, v in headers.items()),
        }
        command = [
            "wrk",
            "-t1",
            f"-c{connections}",
            f"-d{max(1, round(seconds))}s",
            "--timeout",
            "30s",
        ]
        done = subprocess.run(
            [*command, "-s", str(_LUA), url], env=env, capture_output=True, text=True, check=True
        )
    line = next(text for text in done.stdout.splitlines() if text.startswith("JSON "))
    found: dict[str, Any] = json.loads(line[5:])
    if found["wrong"] or found["other"] or found["broken"] or not found["right"]:
        raise SystemExit(f"not every answer was right: {found}")
    found["rate"] = found["right"] / (found["duration_us"] / 1e6)
    return found


def post(url: str, body: bytes, headers: dict[str, str]) -> bytes:
    request = urllib.request.Request(url, body, headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return bytes(answer.read())


def start_echo(port: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "uvicorn", "bench.http:echo", "--port", str(port)]
    process = subprocess.Popen([*command, "--log-level", "warning", "--no-access-log"])
    for _ in range(200):
        try:
            post(f"http://127.0.0.1:{port}/", b"x", {})
            return process
        except OSError:
            time.sleep(0.05)
    raise SystemExit("the echo server did not start")


def need_wrk() -> None:
    """SystemExit where there is none."""
    if shutil.which("wrk") is None:
        raise SystemExit("wrk is missing: apt-get install wrk")


def raw_question(port: int) -> tuple[str, bytes, bytes, dict[str, str]]:
    """A raw row for a pool that serves `Affine`: url, body, the right answer, headers."""
    x = np.random.default_rng(7).standard_normal(WIDTH, dtype=np.float32)
    headers = {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": "0"}
    url = f"http://127.0.0.1:{port}/v2/models/affine/infer"
    expected = post(url, x.tobytes(), headers)
    if not expected.endswith((x * 2 + 1).tobytes()):
        raise SystemExit("the first answer is wrong")
    return url, x.tobytes(), expected, headers


def _ratios(ours: list[float], theirs: list[float]) -> list[float]:
    return [a / b for a, b in zip(ours, theirs, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--connections", type=int, nargs="+", default=[1, 64, 256])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--frontends", type=int, default=1)
    load_heads.add_option(parser)
    parser.add_argument("--save")
    args = parser.parse_args()
    need_wrk()
    rates: dict[str, list[float]] = {}
    flags = ("--max-wait-ms", "0", "--frontends", str(args.frontends))
    with serving(["bench.support.models:Affine"], *flags) as served:
        url, body, expected, headers = raw_question(served.port)
        port = free_port()
        echoing = start_echo(port)
        try:
            sides = {
                "batchpool": (url, expected, headers),
                "bare echo": (f"http://127.0.0.1:{port}/", body, {}),
            }
            turns = itertools.product(
                range(args.rounds), args.connections, load_heads.kinds(args.heads), sides.items()
            )
            for _, connections, heads, (name, (at, right, fields)) in turns:
                found = run_wrk(at, body, right, fields, connections, args.seconds, heads)
                for what in ("rate", "p50_us", "p99_us"):
                    key = f"{connections} connections, {heads} heads, {name}: {what}"
                    rates.setdefault(key, []).append(found[what])
        finally:
            echoing.terminate()
            echoing.wait()
    rows = {key: spread(values) for key, values in rates.items()}
    for connections, heads in itertools.product(args.connections, load_heads.kinds(args.heads)):
        load = f"{connections} connections, {heads} heads"
        ours, theirs = (rates[f"{load}, {name}: rate"] for name in ("batchpool", "bare echo"))
        rows[f"{load}: batchpool / echo"] = spread(_ratios(ours, theirs), 2)
    for connections in args.connections if args.heads == load_heads.BOTH else ():
        differing, equal = (
            rates[f"{connections} connections, {heads} heads, batchpool: rate"]
            for heads in (load_heads.DIFFERING, load_heads.EQUAL)
        )
        rows[f"{connections} connections, batchpool: differing / equal heads"] = spread(
            _ratios(differing, equal), 2
        )
    report("HTTP, y = 2x + 1 on 2 KB raw bodies, one row per request", rows, args.save)


if __name__ == "__main__":
    main()
