"""Clients that end in every way there is.

    python -m tests.process.short_lives --clients 1000       starts a pool and says what is left
    python -m tests.process.short_lives SOCKET --rounds 7    one client of each kind a round

Each child attaches, does what its kind says with most of a lane's slots, and ends. They all
belong to one short-lived parent, as they would in a script or a test run.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

import batchpool as bp
from batchpool.client.control import ask_status
from batchpool.core.layout.states import SlotState
from batchpool.core.tensors.rows import check_rows
from tests.process.pool_under_test import ROOT, Pool, serving, until

ROWS = 900  # of a lane's 921 that may be claimed
MOST_S = 20.0
MODELS = ("Affine", "Special", "Slow")
_PR_SET_CHILD_SUBREAPER = 36
_LEAD = list(os.pipe())  # who forks of a client lives until the writing end is closed


def x_of(n: int) -> Any:
    return np.arange(4 * n, dtype=np.float32).reshape(n, 4)


def killed() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable")


def closes(client: bp.Client) -> None:
    x = x_of(ROWS)
    assert (client.infer("affine", x=x)["y"] == 2 * x + 1).all()
    client.close()


def raises(client: bp.Client) -> None:
    client.submit("affine", x=x_of(ROWS))
    raise RuntimeError("not caught")


def exits(client: bp.Client) -> None:
    client.submit("affine", x=x_of(ROWS))
    sys.exit(5)


def terminated(client: bp.Client) -> None:
    client.submit("affine", x=x_of(ROWS))
    os.kill(os.getpid(), signal.SIGTERM)


def dies_before_publishing(client: bp.Client) -> None:
    """Slots are claimed and written; the ring says nothing of them."""
    client.infer("special", x=np.ones((1, 3), np.float32))
    session = client._driver.reaper.session
    assert session is not None
    port = session.lane_set["special"]
    port.flush = killed  # type: ignore[method-assign]  # the process dies there
    client.submit("special", x=np.ones((ROWS, 3), np.float32))


def dies_after_publishing(client: bp.Client) -> None:
    client.submit("affine", x=x_of(ROWS))
    killed()


def dies_while_its_rows_run(client: bp.Client) -> None:
    client.submit("slow", tag=[1], seconds=[0.05])
    client.submit("slow", tag=np.arange(ROWS), seconds=np.zeros(ROWS, np.float32))
    killed()


def dies_with_answers_not_taken(client: bp.Client) -> None:
    leave_answers(client)
    killed()


def dies_after_a_fork(client: bp.Client) -> None:
    """Its child lives on and holds all that it held: the socket, the lane, the bells."""
    leave_answers(client)
    if os.fork() == 0:
        os.close(_LEAD[1])
        os.read(_LEAD[0], 1)
        os._exit(0)
    killed()


def leave_answers(client: bp.Client) -> None:
    """Most of a lane done, and nothing of it taken."""
    client.infer("affine", x=x_of(1))
    session = client._driver.reaper.session
    assert session is not None
    port = session.lane_set["affine"]
    rows = check_rows(session.facts("affine").spec, {"x": x_of(ROWS)}, None)
    pending = port.submit(rows, 1, 2**62)
    port.flush()
    session.ring()
    while port.lane.state[pending.slots].min() != SlotState.DONE:
        os.sched_yield()


KINDS: list[tuple[Callable[[bp.Client], None], int]] = [
    (closes, 0),
    (raises, 1 << 8),
    (exits, 5 << 8),
    (terminated, signal.SIGTERM),
    (dies_before_publishing, signal.SIGKILL),
    (dies_after_publishing, signal.SIGKILL),
    (dies_while_its_rows_run, signal.SIGKILL),
    (dies_with_answers_not_taken, signal.SIGKILL),
    (dies_after_a_fork, signal.SIGKILL),
]


def start(kind: Callable[[bp.Client], None], socket: str) -> int:
    pid = os.fork()
    if pid == 0:
        status = 0
        try:
            kind(bp.Client(socket))
        except SystemExit as exc:
            status = int(exc.code or 0)
        except RuntimeError:
            status = 1
        except BaseException:
            traceback.print_exc()
            status = 70
        finally:
            os._exit(status)
    return pid


def lives(socket: str, rounds: int) -> float:
    """Let them live; how long it took at most until a dead one's lanes were back, in seconds."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # children of the dead are ours
    slowest_s = 0.0
    for _ in range(rounds):
        pids = [(start(kind, socket), kind, status) for kind, status in KINDS]
        for pid, kind, status in pids:
            found = os.waitpid(pid, 0)[1]
            assert found == status, f"{kind.__name__} ended with {found}, not {status}"
        slowest_s = max(slowest_s, until_gone(socket, {pid for pid, _, _ in pids}))
        with bp.Client(socket) as client:
            closes(client)
        release()
    return slowest_s


def until_gone(socket: str, pids: set[int]) -> float:
    """Wait until no lane is any of these clients' any more; how long that took, in seconds."""
    names = tuple(f"(pid {pid})" for pid in pids)
    begun = time.monotonic()
    while any(lane["owner"].endswith(names) for lane in ask_status(socket)["lanes"]):
        assert time.monotonic() - begun < MOST_S, "a dead client's lane is not given back"
    return time.monotonic() - begun


def release() -> None:
    """Let those end that live on after their parent."""
    for end in _LEAD:
        os.close(end)
    _LEAD[:] = os.pipe()
    while True:
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def live(socket: str, rounds: int) -> float:
    """`lives` of another process, whose clients must not say a word."""
    command = [sys.executable, "-Werror", "-m", "tests.process.short_lives", socket]
    ended = subprocess.run(
        [*command, "--rounds", str(rounds)],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout
    return float(json.loads(ended.stdout)["slowest_s"])


# -- by hand: what a thousand of them leave ------------------------------------------------


def measured(pool: Pool) -> dict[str, dict[str, int]]:
    """Of each process: memory of its own and altogether in KiB, descriptors, lanes mapped."""
    found = {}
    holdings = pool.holdings()
    for row in pool.status()["processes"]:
        pid = row["pid"]
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        kib = {line.split(":")[0]: int(line.split()[1]) for line in lines if line.endswith(" kB")}
        descriptors, lanes = holdings[pid]
        found[row["name"]] = {
            "own_kib": kib["RssAnon"],
            "rss_kib": kib["VmRSS"],
            "descriptors": descriptors,
            "lanes_mapped": lanes,
        }
    return found


def report(clients: int) -> None:
    with serving(*MODELS) as pool:
        live(pool.socket, 1)  # what is allocated once, is allocated now
        until(lambda: not pool.lanes(), "the return of every lane")
        before = measured(pool)
        begun = time.monotonic()
        rounds = -(-clients // len(KINDS))
        slowest_s = live(pool.socket, rounds)
        took_s = time.monotonic() - begun
        until(lambda: not pool.lanes(), "the return of every lane")
        after = measured(pool)
        restarts = sum(row["restarts"] for row in pool.status()["processes"])
    print(f"{rounds * len(KINDS)} clients of {len(KINDS)} kinds and {rounds} more: {took_s:.1f} s")
    print(f"slowest return of a dead client's lanes: {slowest_s:.3f} s; restarts: {restarts}")
    for name, values in before.items():
        changes = [f"{key} {value} -> {after[name][key]}" for key, value in values.items()]
        print(f"  {name:<20} {', '.join(changes)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("socket", nargs="?")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--clients", type=int, default=1000)
    args = parser.parse_args()
    if args.socket is None:
        report(args.clients)
    else:
        json.dump({"slowest_s": lives(args.socket, args.rounds)}, sys.stdout)


if __name__ == "__main__":
    main()
