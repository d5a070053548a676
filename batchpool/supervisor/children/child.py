"""The supervisor's side of a child process: start by exec, notice the end, remember the past."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from batchpool.control.channel import Channel, Closed, close_all, pair
from batchpool.core.errors import StartError
from batchpool.shm.resource_errors import named, text_of
from batchpool.supervisor.children.excuses import Exemption

_LOG = logging.getLogger("batchpool.supervisor")
STUCK_NS = 60_000_000_000  # a GPU's driver may take long to take its memory back
LAST_WAIT_NS = 10_000_000_000  # at the pool's own end, which somebody waits for
_BACK_OFF_FIRST_S = 0.5
_BACK_OFF_MOST_S = 30.0
# Who multiplies no matrices needs no thread for it on each core.
_NO_BLAS = {"OPENBLAS_NUM_THREADS": "1"}


@dataclass
class ProcessSlot:
    """A place a process fills, one after another: "worker 0 of minilm". It has the history."""

    name: str
    restarts: int = 0
    failures: int = 0  # deaths in a row without any useful work
    last_error: str = ""

    def backoff_s(self, useful: bool) -> float:
        """How long to wait before the next start; a death after useful work starts at once."""
        self.restarts += 1
        if useful:
            self.failures = 0
            return 0.0
        self.failures += 1
        return float(min(_BACK_OFF_MOST_S, _BACK_OFF_FIRST_S * 2 ** (self.failures - 1)))

    def start_failed_s(self, why: StartError) -> float:
        """Nobody could be started, while the others serve on: how long to wait now."""
        self.last_error = str(why)
        delay_s = self.backoff_s(useful=False)
        _LOG.error("%s; trying again in %.1f s", why, delay_s)
        return delay_s


@dataclass
class Child:
    """A running child. `pidfd` is -1 where the kernel has none; then `is_gone` is asked.

    started_ns: CLOCK_MONOTONIC, before its start. cause: why it will end, where that is known
    before. condemned: killed for it; the end is on the way. killed_ns: when SIGKILL was sent.
    """

    role: str
    slot: ProcessSlot
    process: subprocess.Popen[bytes]
    channel: Channel
    pidfd: int
    started_ns: int
    state: str = "starting"
    cause: str = ""
    terminating: bool = False
    killed_ns: int = 0
    exemption: Exemption = field(default_factory=Exemption, repr=False)
    closed: bool = field(default=False, repr=False)
    outbox: deque[tuple[dict[str, Any], list[int]]] = field(default_factory=deque, repr=False)

    @property
    def pid(self) -> int:
        return self.process.pid

    def is_gone(self) -> bool:
        """Whether it has ended; reaps it if so."""
        return self.process.poll() is not None

    def reason(self) -> str:
        """Why it ended, for people: the cause where that was known before."""
        return self.cause or self.exit_text()

    def exit_text(self) -> str:
        """How it ended, for people."""
        code = self.process.returncode
        if code is None:
            return "has not ended"
        if code < 0:
            try:
                return f"was killed by {signal.Signals(-code).name}"
            except ValueError:
                return f"was killed by signal {-code}"
        return f"ended with exit status {code}"

    def tell(self, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
        """Send a control message, in order; kept until the child reads if it is busy.

        A child for which it cannot be kept would be out of date for ever: it is killed, and the
        next one is told everything. Nothing is kept for one that was killed, however long it takes
        to end: what is kept holds descriptors, and those memory.
        """
        self.flush()
        if self.killed_ns:
            return
        if self.outbox or not self._send(message, fds):
            kept: list[int] = []
            try:
                for fd in fds:
                    kept.append(os.dup(fd))
            except OSError as exc:
                close_all(kept)
                self.terminate(f"could not be told what it must know: {text_of(exc)}")
            else:
                self.outbox.append((message, kept))

    def flush(self) -> None:
        """Send what is kept; nothing to a child that is gone, whose end is noticed elsewhere."""
        if self.killed_ns:
            self._drop_outbox()
        while self.outbox:
            message, fds = self.outbox[0]
            if not self._send(message, fds):
                return
            if self.outbox:
                self.outbox.popleft()
                close_all(fds)

    def _send(self, message: dict[str, Any], fds: Sequence[int]) -> bool:
        """Whether that is done with: it was sent, or the child has gone."""
        try:
            self.channel.send(message, fds)
        except BlockingIOError:
            return False
        except Closed:
            self._drop_outbox()
        return True

    def _drop_outbox(self) -> None:
        while self.outbox:
            close_all(self.outbox.popleft()[1])

    def kill(self, sig: signal.Signals = signal.SIGKILL) -> None:
        if not self.is_gone():
            if sig == signal.SIGKILL and not self.killed_ns:
                self.killed_ns = time.monotonic_ns()
            self.process.send_signal(sig)

    def is_stuck(self, now_ns: int) -> bool:
        """Whether it was killed long ago and is still there: in a call of the kernel's that does
        not return, as to a driver or a file server that has died."""
        return bool(self.killed_ns) and now_ns - self.killed_ns > STUCK_NS and not self.is_gone()

    def reap(self, until_ns: int) -> None:
        """Wait for the end of one that was killed; not longer than until then."""
        try:
            self.process.wait(max(0.0, (until_ns - time.monotonic_ns()) / 1e9))
        except subprocess.TimeoutExpired:
            _LOG.error("%s (pid %d) does not end although it was killed", self.slot.name, self.pid)

    def terminate(self, cause: str) -> None:
        """Kill it, also when it is stopped, and remember why."""
        self.cause = cause
        self.terminating = True
        self.kill()

    def close(self) -> None:
        """Let go of its descriptors, once it has ended."""
        if not self.closed:
            self.closed = True
            self._drop_outbox()
            self.channel.close()
            if self.pidfd >= 0:
                os.close(self.pidfd)


def start_child(
    role: str,
    module: Sequence[str],
    slot: ProcessSlot,
    *,
    started_ns: int,
    flags: Sequence[str] = (),
    fds: Sequence[int] = (),
    settings: Mapping[str, str] | None = None,
) -> Child:
    """Start `python -m MODULE...` with one end of a control channel.

    Only the supervisor's main thread may call this: the child's life is bound to the thread
    that started it. started_ns: CLOCK_MONOTONIC, now. settings: what its environment has more
    than ours. Raises StartError when the machine has no room for another process.
    """
    with named(f"cannot start {slot.name}"):
        ours, theirs = pair()
    command = [
        sys.executable,
        "-m",
        *module,
        "--control-fd",
        str(theirs.fileno()),
        "--parent",
        str(os.getpid()),
        "--name",
        slot.name,
        *flags,
    ]
    # A signal to the whole group must not meet a child that is not prepared for it yet: it
    # waits until the child says (process/bootstrap.py) what it does with it.
    later = {signal.SIGINT, signal.SIGHUP} | (set() if role == "frontend" else {signal.SIGTERM})
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, later)
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno(), *fds],
            env={**os.environ, **({} if role == "worker" else _NO_BLAS), **(settings or {})},
        )
    except OSError as exc:  # no memory, or no process to be had
        ours.close()
        raise StartError(f"cannot start {slot.name}: {text_of(exc)}") from exc
    except BaseException:
        ours.close()
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        theirs.close()
    ours.sock.setblocking(False)
    try:
        pidfd = os.pidfd_open(process.pid)
    except OSError:
        pidfd = -1
    return Child(role, slot, process, ours, pidfd, started_ns)
