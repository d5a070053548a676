"""Programs that use a machine as hostile processes do, and do nothing to the pool.

    python -m bench.hostile.control USER_SHARE SYSTEM_SHARE

One process stands for one hostile process. It computes for the share of the time for which that
one computed, and for the share for which that one was in the kernel it sends bytes to itself over
loopback, as most of that time went there; at the same low priority of the scheduler. So what a pool
loses beside hostile processes is told apart: what it loses beside these too, it loses to the
processors, caches and the kernel that they take from it, as beside any busy program; only what is
beyond it was done to the pool through its sockets and its memory. It ends with its standard input,
and prints the CPU time that it has used, in s.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_PERIOD_S = 0.1  # to look at the clocks more often would use more time than most of them do
_PIECE = bytes(1 << 14)


@dataclass(frozen=True)
class Used:
    """The CPU time of one process. user_s, system_s: since its start, in it and in the kernel."""

    user_s: float
    system_s: float

    @classmethod
    def of(cls, pid: int) -> Used:
        """As the kernel counts it now."""
        with open(f"/proc/{pid}/stat", "rb") as stat:
            fields = stat.read().rpartition(b")")[2].split()
        ticks = os.sysconf("SC_CLK_TCK")
        return cls(int(fields[11]) / ticks, int(fields[12]) / ticks)

    def since(self, before: Used) -> Used:
        return Used(self.user_s - before.user_s, self.system_s - before.system_s)


def stand_last() -> None:
    """Take the lowest priority of the scheduler: what is measured is the pool, not who gets the
    processors."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def end_soon(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Close the standard inputs of such processes, all at once, and let them have processors: on a
    busy machine they would take minutes to end."""
    for process in processes:
        if process.stdin is not None:
            process.stdin.close()
            process.stdin = None
        with contextlib.suppress(OSError):  # it has ended, or belongs to another user
            os.sched_setscheduler(process.pid, os.SCHED_OTHER, os.sched_param(0))


def main(argv: Sequence[str]) -> int:
    """Use the processors until the standard input ends; returns the exit status."""
    user_share, system_share = map(float, argv)
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as listener:
        sender = socket.create_connection(listener.getsockname())
        receiver, _ = listener.accept()
    begun_s, begun = time.monotonic(), os.times()
    print(json.dumps("begins"), flush=True)
    stand_last()
    while not select.select([sys.stdin], [], [], 0)[0]:
        elapsed_s = time.monotonic() - begun_s
        times = os.times()
        if times.system - begun.system < system_share * elapsed_s:
            _send(sender, receiver, times.system + _PERIOD_S * system_share)
        elif times.user - begun.user < user_share * elapsed_s:
            _compute(time.thread_time() + _PERIOD_S * user_share)
        else:
            time.sleep(_PERIOD_S / 2)
    ended = os.times()
    print(json.dumps(ended.user + ended.system - begun.user - begun.system))
    return 0


def _send(sender: socket.socket, receiver: socket.socket, until_s: float) -> None:
    """Send bytes to this process until it has used so much time of the kernel."""
    while os.times().system < until_s:
        for _ in range(20):
            sender.sendall(_PIECE)
            left = len(_PIECE)
            while left:
                left -= len(receiver.recv(left))


def _compute(until_s: float) -> None:
    while time.thread_time() < until_s:
        sum(range(1000))


@contextlib.contextmanager
def controls(used: Sequence[Used], seconds: float) -> Iterator[list[float]]:
    """Processes that use as much CPU time in so many seconds as these; their own, in s, are in the
    list afterwards."""
    found: list[float] = []
    processes = []
    for each in used:
        shares = [str(each.user_s / seconds), str(each.system_s / seconds)]
        command = [sys.executable, "-m", "bench.hostile.control", *shares]
        processes.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
    for process in processes:
        assert process.stdout is not None
        process.stdout.readline()  # it has begun
    try:
        yield found
    finally:
        end_soon(processes)
        for process in processes:
            out, _ = process.communicate(timeout=60)
            found.append(json.loads(out.splitlines()[-1]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
