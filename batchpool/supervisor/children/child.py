"""A child process as the supervisor sees it: its start, control channel, end, and restarts.

ProcessSlot   a place that processes fill one after another, with its restarts and last error
Exemption     time that is not held against one process
Child         a running process
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from batchpool.control.channel import Channel, Closed, close_all, pair
from batchpool.core.config.server_table import ServerConfig
from batchpool.core.errors import StartError
from batchpool.process.python_command import package_environment, python_command
from batchpool.shm.resource_errors import named, text_of
from batchpool.supervisor.children.roles import Role, ToChild

_LOG = logging.getLogger("batchpool.supervisor")

STUCK_NS = 60_000_000_000  # the driver of a GPU may take long to release its memory
LAST_WAIT_NS = 10_000_000_000  # for all children when the pool itself stops
_BACKOFF_S_LEAST = 0.5
_BACKOFF_S_MOST = 30.0
# Only workers multiply matrices: in other processes OpenBLAS need not start a thread per core.
_NO_BLAS = {"OPENBLAS_NUM_THREADS": "1"}


@dataclass
class ProcessSlot:
    """A place that processes fill one after another, as "worker 0 of minilm".

    restarts: processes that were to follow another one. failures: ends in a row before any useful
    work. last_error: the reason of the last end or failed start.
    """

    name: str
    restarts: int = 0
    failures: int = 0
    last_error: str = ""

    def backoff_s(self, useful: bool) -> float:
        """Count a restart and return the time until it is due: 0 after useful work, else a time
        that doubles with each failure."""
        self.restarts += 1
        if useful:
            self.failures = 0
            return 0.0
        self.failures += 1
        return float(min(_BACKOFF_S_MOST, _BACKOFF_S_LEAST * 2 ** (self.failures - 1)))

    def start_failed_s(self, error: StartError) -> float:
        """Log a failed start and return the time until the next attempt."""
        self.last_error = str(error)
        delay_s = self.backoff_s(useful=False)
        _LOG.error("%s; trying again in %.1f s", error, delay_s)
        return delay_s


@dataclass
class Exemption:
    """Time that is not held against one process: all of it up to until_ns (CLOCK_MONOTONIC)."""

    until_ns: int = 0
    _waited_ns: int = 0
    _read_ns: int = 0

    def add_wait(self, since_ns: int, waited_ns: int, now_ns: int) -> None:
        """Exempt the wait for a processor between the last reading and this one.

        since_ns: the time of the process's last progress; a reading from before it says nothing.
        waited_ns: the reading of now, added up over all threads. Threads that wait at the same
        time exempt no more than the time that passed.
        """
        if self._read_ns > since_ns:
            starved_ns = min(max(0, waited_ns - self._waited_ns), now_ns - self._read_ns)
            self.until_ns = max(since_ns, self.until_ns) + starved_ns
        self._waited_ns, self._read_ns = waited_ns, now_ns


@dataclass
class Child:
    """A running child process.

    slot: the place it fills. pidfd: readable when the process has ended; -1 where the kernel has no
    such descriptors, so that `is_gone` must be polled. started_ns: CLOCK_MONOTONIC, before its
    start. cause: the reason of its end, where that is known beforehand. terminating: it was killed
    for a cause and has not ended yet. end_by_ns: the time by which it is to have ended by itself
    (CLOCK_MONOTONIC), 0 before it is to end. killed_ns: the time of SIGKILL, 0 before. outbox:
    messages that its socket could not take yet.
    """

    role: Role
    slot: ProcessSlot
    process: subprocess.Popen[bytes]
    channel: Channel
    pidfd: int
    started_ns: int
    state: str = "starting"
    cause: str = ""
    terminating: bool = False
    end_by_ns: int = 0
    killed_ns: int = 0
    exemption: Exemption = field(default_factory=Exemption, repr=False)
    closed: bool = field(default=False, repr=False)
    outbox: deque[tuple[ToChild, list[int]]] = field(default_factory=deque, repr=False)

    @property
    def pid(self) -> int:
        return self.process.pid

    def is_gone(self) -> bool:
        """Return True if the process has ended, and reap it then."""
        return self.process.poll() is not None

    def reason(self) -> str:
        """The reason of its end in words: the cause, else how it ended."""
        return self.cause or self.exit_text()

    def failed_start(self) -> str:
        """The failure of its start in words: what it said, or how it ended without a word."""
        why = self.reason()
        if why == self.exit_text():
            return f"{why} while loading"
        return why if why.startswith("did not") else f"failed: {why}"

    def died_at_its_end(self) -> bool:
        """True if it was to end and died on the way, by its own doing."""
        own_doing = not self.killed_ns and not self.cause
        return bool(self.end_by_ns) and own_doing and self.process.returncode != 0

    def exit_text(self) -> str:
        """Its exit status or signal in words."""
        code = self.process.returncode
        if code is None:
            return "has not ended"
        if code < 0:
            try:
                return f"was killed by {signal.Signals(-code).name}"
            except ValueError:
                return f"was killed by signal {-code}"
        return f"ended with exit status {code}"

    def send(self, message: ToChild, fds: Sequence[int] = ()) -> None:
        """Send a control message in order; keep it until the child reads if its socket is full.

        A child for which a message cannot be kept would be out of date for ever. It is killed,
        and the next process gets the whole state. Nothing is kept for a child that was killed:
        kept messages hold descriptors, and it may take long to end.
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

    def withdraw(self, is_meant: Callable[[ToChild], bool]) -> bool:
        """Drop a kept message that the child has not been sent yet; False where there is none."""
        for kept in self.outbox:
            if is_meant(kept[0]):
                self.outbox.remove(kept)
                close_all(kept[1])
                return True
        return False

    def flush(self) -> None:
        """Send kept messages as far as the child reads; drop them if it was killed or is gone."""
        if self.killed_ns:
            self._drop_outbox()
        while self.outbox:
            message, fds = self.outbox[0]
            if not self._send(message, fds):
                return
            if self.outbox:
                self.outbox.popleft()
                close_all(fds)

    def _send(self, message: ToChild, fds: Sequence[int]) -> bool:
        """Return False if the socket is full; True if the message was sent or the child is gone."""
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
        """True when the process was killed more than STUCK_NS ago and has not ended, as in a system
        call to a dead driver or file server that does not return."""
        return bool(self.killed_ns) and now_ns - self.killed_ns > STUCK_NS and not self.is_gone()

    def reap(self, until_ns: int) -> None:
        """Wait until a killed process has ended, at most until until_ns (CLOCK_MONOTONIC)."""
        try:
            self.process.wait(max(0.0, (until_ns - time.monotonic_ns()) / 1e9))
        except subprocess.TimeoutExpired:
            _LOG.error("%s (pid %d) does not end although it was killed", self.slot.name, self.pid)

    def terminate(self, cause: str) -> None:
        """Kill the process, also a stopped one, and record the cause."""
        self.cause = cause
        self.terminating = True
        self.kill()

    def close(self) -> None:
        """Close its descriptors, once it has ended."""
        if not self.closed:
            self.closed = True
            self._drop_outbox()
            self.channel.close()
            if self.pidfd >= 0:
                os.close(self.pidfd)


def log_flags(server: ServerConfig) -> list[str]:
    """The flags of every child: its log's level and format."""
    return ["--log-level", server.log_level, "--log-format", server.log_format]


def start_child(
    role: Role,
    slot: ProcessSlot,
    *,
    started_ns: int,
    flags: Sequence[str] = (),
    fds: Sequence[int] = (),
    settings: Mapping[str, str] | None = None,
) -> Child:
    """Start `python -m` with the role's module and one end of a control channel.

    Only the supervisor's main thread may call this: a child ends with the thread that started it.
    started_ns: CLOCK_MONOTONIC, now. fds: descriptors that it inherits. settings: environment
    variables besides those of the supervisor. Raises StartError when there is no memory, process
    or descriptor to be had.
    """
    with named(f"cannot start {slot.name}"):
        ours, theirs = pair()
    command = [
        *python_command(role.module),
        "--control-fd",
        str(theirs.fileno()),
        "--parent",
        str(os.getpid()),
        "--name",
        slot.name,
        *flags,
    ]
    # A signal to the whole process group must not end a child that has not set its signal actions
    # yet: it stays blocked until `batchpool/process/bootstrap.py` has set them.
    blocked = {signal.SIGINT, signal.SIGHUP} | (
        set() if role.sigterm_at_start else {signal.SIGTERM}
    )
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno(), *fds],
            env=package_environment(
                {**os.environ, **({} if role.blas_threads else _NO_BLAS), **(settings or {})}
            ),
        )
    except OSError as exc:  # no memory, or the limit of processes
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
