"""Load on one server: 96 distinct rows compared whole, then wrk, with the CPU time it cost."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.load.heads import AGENT, DIFFERING, EQUAL
from bench.peers import family
from bench.peers.forms import ROW_BYTES, WIDTH, Row
from bench.peers.quiet import NOISE_CORES, Use, await_quiet, between, look
from bench.peers.server import GaveUp, Running
from bench.peers.split import Split, all_cores, move
from bench.support.children import on_cores

_LUA = Path(__file__).with_name("wrk_peers.lua")
_TALLY = Path(__file__).parents[1] / "load" / "wrk_tally.lua"
_ROWS = 96
_AT_ONCE = 16
_FIRST_VALUES = 8
_ASK_S = 2.0
_GRACE_S = 30.0  # beyond wrk's own time; its requests may take that long


@dataclass(frozen=True)
class Questions:
    """rows [n, 512] and their answers; tolerance: between an answer and the right one."""

    rows: npt.NDArray[np.float32]
    right: npt.NDArray[np.float32]
    tolerance: float


@dataclass(frozen=True)
class Cell:
    """One run of wrk. rate: right answers per second; failed: any other answer, or none;
    cpu_us: user and system time of all the server's processes per right answer; others_cores: what
    processes that have nothing to do with it used meanwhile; heads: of its requests."""

    peer: str
    model: str
    connections: int
    round: int
    rate: float
    p50_us: float
    p99_us: float
    right: int
    failed: int
    cpu_us: float
    others_cores: float
    heads: str = EQUAL  # of files that do not tell


def questions(model: str, device: str) -> Questions:
    """The rows and, by the model right here on the CPU, their answers. RuntimeError: the answers
    of two rows are so alike that a mix-up would not show."""
    from bench.peers.servers.peer_model import make_model

    rows = np.random.default_rng(11).standard_normal((_ROWS, WIDTH), dtype=np.float32)
    if model == "echo":
        return Questions(rows, rows, 0.0)
    right = make_model(model, "cpu")(rows)
    tolerance = 1e-5 if device == "cpu" or model == "affine" else 2e-3
    apart = np.abs(right[1:] - right[:-1]).max(axis=1).min()
    if apart < 4 * tolerance:
        raise RuntimeError(f"answers differ by {apart:g} only, the tolerance is {tolerance:g}")
    return Questions(rows, right, tolerance)


def ask(server: Running, row: Row, timeout_s: float) -> tuple[int, bytes]:
    """One row on a connection of its own: the status and the body."""
    form = server.peer.form
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=timeout_s)
    try:
        connection.request("POST", server.path, form.encode(row), headers=dict(form.headers))
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def serves(server: Running, asked: Questions) -> bool:
    try:
        return ask(server, asked.rows[0], _ASK_S)[0] == 200
    except (OSError, http.client.HTTPException):
        return False


def compare(server: Running, asked: Questions) -> int:
    """All rows, several at once, every value. -> the length of a right answer, 0 where it varies.
    GaveUp: an answer was wrong."""
    to_do = deque(range(len(asked.rows)))
    wrong: list[str] = []
    lengths: set[int] = set()

    def work() -> None:
        while not wrong:
            try:
                i = to_do.popleft()
            except IndexError:
                return
            try:
                status, body = ask(server, asked.rows[i], _GRACE_S)
                if status != 200:
                    wrong.append(f"{status} {body[:200]!r}")
                elif not is_near(server.peer.form.decode(body), asked.right[i], asked.tolerance):
                    wrong.append(f"row {i}: a wrong answer")
                lengths.add(len(body))
            except (OSError, http.client.HTTPException, ValueError) as error:
                wrong.append(repr(error))

    threads = [threading.Thread(target=work) for _ in range(_AT_ONCE)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if wrong:
        raise GaveUp(f"{len(wrong)} wrong answers before any load, the first: {wrong[0]}")
    if server.peer.form.is_fixed and len(lengths) > 1:
        raise GaveUp(f"answers of several lengths: {sorted(lengths)}")
    return lengths.pop() if server.peer.form.is_fixed else 0


def is_near(row: Row, right: Row, tolerance: float) -> bool:
    return row.shape == right.shape and bool((np.abs(row - right) <= tolerance).all())


def told_by(output: str) -> dict[str, Any]:
    """The line that wrk_peers.lua prints at its end. Raises ValueError where there is none."""
    for line in output.splitlines():
        if line.startswith("JSON "):
            found: dict[str, Any] = json.loads(line[5:])
            return found
    raise ValueError(f"no figures from wrk: {output[-300:]!r}")


@dataclass(frozen=True)
class Wrk:
    """wrk with what it needs to send and to judge. libraries: a folder of its own, or "".
    patience_s: how long a run may take longer, while others keep the machine busy; the quietest
    try counts. heads: the kinds of heads, each of which gets a run."""

    program: str
    libraries: str
    server: Running
    asked: Questions
    length: int
    split: Split
    patience_s: float = 0.0
    heads: tuple[str, ...] = (DIFFERING,)

    def run(self, connections: int, seconds: int, round_: int, heads: str) -> Cell:
        """GaveUp: it hangs, answers wrong, or not at all."""
        until_s = time.monotonic() + self.patience_s
        tries: list[Cell] = []
        while True:
            self._settle()
            await_quiet(until_s)
            tries.append(self._once(connections, seconds, round_, heads))
            if tries[-1].others_cores < NOISE_CORES or time.monotonic() > until_s:
                return min(tries, key=lambda cell: cell.others_cores)

    def _once(self, connections: int, seconds: int, round_: int, heads: str) -> Cell:
        server, form = self.server, self.server.peer.form
        with tempfile.TemporaryDirectory(prefix="bp-") as folder:
            body, right = Path(folder) / "body", Path(folder) / "right"
            body.write_bytes(form.encode(self.asked.rows[0]))
            right.write_bytes(self.asked.right[0][:_FIRST_VALUES].tobytes())
            env = os.environ | {
                "TALLY": str(_TALLY),
                "BODY": str(body),
                "RIGHT": str(right),
                "HEADERS": "\n".join(f"{key}: {value}" for key, value in form.headers.items()),
                "HEADS": heads,
                "AGENT": AGENT,
                "LENGTH": str(self.length),
                "ROW_BYTES": str(ROW_BYTES),
                "TOLERANCE": repr(self.asked.tolerance),
            }
            if self.libraries:
                env["LD_LIBRARY_PATH"] = self.libraries
            threads = min(connections, self.split.threads)
            told = [self.program, f"-t{threads}", f"-c{connections}", f"-d{seconds}s"]
            told += ["--timeout", f"{_GRACE_S:g}s", "-s", str(_LUA), server.url]
            before = look()
            try:
                with on_cores(self.split.of_load(all_cores())):
                    done = subprocess.run(
                        told,
                        check=False,
                        env=env,
                        capture_output=True,
                        text=True,
                        timeout=seconds + _GRACE_S,
                    )
            except subprocess.TimeoutExpired:
                raise GaveUp(f"hangs at {connections} connections") from None
            used = between(before, look())
        if server.process.poll() is not None:
            status = server.process.returncode
            raise GaveUp(f"ended with {status} at {connections} connections")
        return self._cell(told_by(done.stdout + done.stderr), connections, round_, used, heads)

    def _settle(self) -> None:
        """wrk leaves requests behind that nobody waits for; an answer comes after theirs."""
        try:
            ask(self.server, self.asked.rows[0], _GRACE_S)
        except (OSError, http.client.HTTPException) as error:
            raise GaveUp(f"answers nothing any more: {error!r}") from None

    def _cell(
        self, found: dict[str, Any], connections: int, round_: int, used: Use, heads: str
    ) -> Cell:
        if found["wrong"]:
            raise GaveUp(f"{found['wrong']} wrong answers at {connections} connections")
        if not found["right"]:
            raise GaveUp(f"no answer at {connections} connections")
        return Cell(
            self.server.peer.name,
            self.server.model,
            connections,
            round_,
            found["right"] / (found["duration_us"] / 1e6),
            found["p50_us"],
            found["p99_us"],
            found["right"],
            found["refused"] + found["other"] + found["broken"],
            used.server_s / found["right"] * 1e6,
            used.others_cores,
            heads,
        )


def measure(wrk: Wrk, plan: Sequence[tuple[int, int]], round_: int) -> Iterator[Cell]:
    """Of each (connections, seconds), as soon as it is there. The server is moved to its cores."""
    move(family.ours(), wrk.split.of_server(all_cores()))
    for connections, seconds in plan:
        for heads in wrk.heads:
            yield wrk.run(connections, seconds, round_, heads)
