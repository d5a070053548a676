"""Small requests beside callers that send large bodies as fast as they can, over both roads.

    python -m bench.arriving_bodies [--senders 20] [--seconds 4] [--rounds 3] [--body-mib 64]
        [--save FILE.json]

One front end. An honest caller sends a small request every few milliseconds, alone and beside
senders of each kind:

    taken, fast    bodies of 4 MiB that the fast path takes whole and then refuses for their size
    taken, asgi    the same by way of ASGI
    refused        bodies that are refused by their heads, and dropped as they come

For each kind: the latency of honest requests, the front end's CPU time as a part of a core, and the
bytes that it took. Besides, one upload of body-mib with nobody beside it: its rate, and the CPU
time of the front end. Senders get what is left of the processors.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bench.support.machine import percentile, report, spread
from bench.support.models import WIDTH
from bench.support.serving import Served, cpu_seconds, serving

MIB = 1 << 20
TAKEN_BYTES = 4 * MIB
REFUSED_BYTES = 128 * MIB
PAUSE_S = 0.003
PATH = "/v2/models/affine/infer"
KINDS = ("taken, fast", "taken, asgi", "refused")


def head(path: str, size: int) -> bytes:
    return (
        f"POST {path} HTTP/1.1\r\nHost: pool\r\nContent-Type: application/octet-stream\r\n"
        f"Inference-Header-Content-Length: 0\r\nContent-Length: {size}\r\n\r\n"
    ).encode()


def answered(sock: socket.socket) -> int:
    """The status of the next response; its body has been read."""
    received = b""
    while b"\r\n\r\n" not in received:
        received += _some(sock)
    lines, _, body = received.partition(b"\r\n\r\n")
    length = int(lines.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    while len(body) < length:
        body += _some(sock)
    return int(lines.split(b" ", 2)[1])


def _some(sock: socket.socket) -> bytes:
    came = sock.recv(1 << 16)
    if not came:
        raise ConnectionResetError
    return came


# -- senders ---------------------------------------------------------------------------------


def send_without_end(port: int, kind: str) -> None:
    """Send bodies of one kind over one connection after another, for ever."""
    size = REFUSED_BYTES if kind == "refused" else TAKEN_BYTES
    start = head(PATH + ("?a" if kind == "taken, asgi" else ""), size)
    piece = bytes(MIB)
    while True:
        try:
            with socket.create_connection(("127.0.0.1", port)) as sock:
                while True:
                    sock.sendall(start)
                    for _ in range(size // MIB):
                        sock.sendall(piece)
                    answered(sock)
        except OSError:
            time.sleep(0.01)


@contextmanager
def senders(port: int, kind: str, n: int) -> Iterator[None]:
    """A process with n connections of this kind, until the block ends."""
    command = [sys.executable, "-m", "bench.arriving_bodies", "--be", kind, f"{port}", f"{n}"]
    process = subprocess.Popen(command)
    try:
        time.sleep(0.5)
        yield
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def be_senders(kind: str, port: int, n: int) -> None:
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    for _ in range(n):
        threading.Thread(target=send_without_end, args=(port, kind), daemon=True).start()
    signal.pause()


# -- honest callers --------------------------------------------------------------------------


def latencies_ms(port: int, seconds: float) -> list[float]:
    """The latencies of small requests, one at a time; each answer is checked."""
    row = head(PATH, 4 * WIDTH) + bytes(4 * WIDTH)
    found = []
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            start_s = time.perf_counter()
            sock.sendall(row)
            if answered(sock) != 200:
                raise SystemExit("an honest request was refused")
            found.append((time.perf_counter() - start_s) * 1e3)
            time.sleep(PAUSE_S)
    return found


def upload(served: Served, front_end: int, size: int, path: str) -> tuple[float, float]:
    """MiB a second of one body with nobody beside it, and the front end's CPU ms per MiB."""
    body = bytes(size)
    with socket.create_connection(("127.0.0.1", served.port)) as sock:
        cpu_s, start_s = cpu_seconds(front_end), time.perf_counter()
        sock.sendall(head(path, size))
        sock.sendall(body)
        answered(sock)
        took_s = time.perf_counter() - start_s
    return size / MIB / took_s, (cpu_seconds(front_end) - cpu_s) * 1e3 / (size / MIB)


def round_of(served: Served, args: argparse.Namespace) -> dict[str, float]:
    """One figure of each kind, alone and beside each kind of senders."""
    front_end = served.pids()["frontend 0"]
    found: dict[str, float] = {}
    for kind in (None, *KINDS):
        name = kind or "alone"
        cpu_s, start_s = cpu_seconds(front_end), time.monotonic()
        if kind is None:
            took = latencies_ms(served.port, args.seconds)
        else:
            with senders(served.port, kind, args.senders):
                cpu_s, start_s = cpu_seconds(front_end), time.monotonic()
                took = latencies_ms(served.port, args.seconds)
        share = (cpu_seconds(front_end) - cpu_s) / (time.monotonic() - start_s)
        found[f"{name}: p50, ms"] = statistics.median(took)
        found[f"{name}: p99, ms"] = percentile(sorted(took), 0.99)
        found[f"{name}: front end's CPU, of a core"] = share
    for road, path in (("fast", PATH), ("asgi", PATH + "?a")):
        rates = [upload(served, front_end, args.body_mib * MIB, path) for _ in range(6)]
        found[f"lone upload, {road}: MiB/s"] = max(rate for rate, _ in rates)
        found[f"lone upload, {road}: CPU ms a MiB"] = sum(cpu for _, cpu in rates) / len(rates)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--senders", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--body-mib", type=int, default=64)
    parser.add_argument("--be", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--save")
    args = parser.parse_args()
    if args.be:
        be_senders(args.be[0], int(args.be[1]), int(args.be[2]))
    rounds = []
    flags = ("--devices", "cpu", "--frontends", "1", "--max-wait-ms", "0")
    with serving(["bench.support.models:Affine"], *flags) as served:
        latencies_ms(served.port, 0.2)
        for _ in range(args.rounds):
            rounds.append(round_of(served, args))
    rows: dict[str, Any] = {
        name: spread([found[name] for found in rounds], 2) for name in rounds[0]
    }
    report(f"small requests beside {args.senders} senders", rows, args.save)


if __name__ == "__main__":
    main()
