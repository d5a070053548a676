"""A real pool as a subprocess, in a session of its own, with nothing left behind afterwards.

    with serving("Affine", folder=tmp) as pool, pool.client() as client:
        ...

Leaving the block sends SIGTERM, unless the test ended the pool itself, and then asserts the
exit status, that no process of the pool is left, that /dev/shm has nothing of it, and that
nothing in the log is a traceback.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from signal import Signals
from typing import Any

import pytest

import batchpool as bp
from batchpool.client.control import ask_status
from batchpool.client.session import Session
from tests.ports import free_port
from tests.process.models import NOTES

ROOT = Path(__file__).resolve().parents[2]
MODELS = "tests.process.models"
PATIENCE_S = 150.0  # for what must happen, on a machine that is busy with something else
POLL_S, POLL_S_MOST = 0.002, 0.02
# Ends a pool with the test process that started it, however that one ends.
_TIED = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []

Settings = Mapping[str, Any]


def until(
    condition: Callable[[], Any], what: str = "the condition", timeout_s: float = PATIENCE_S
) -> Any:
    """Wait until the condition gives something true, and return that.

    What takes long to come is asked for less often, since each question costs the pool time.
    """
    give_up = time.monotonic() + timeout_s
    pause_s = POLL_S
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > give_up:
            raise AssertionError(f"{what} did not come true within {timeout_s:g} s")
        time.sleep(pause_s)
        pause_s = min(1.2 * pause_s, POLL_S_MOST)


def command(*arguments: str) -> list[str]:
    """The command line of `batchpool ...`."""
    return [sys.executable, "-P", "-m", "batchpool", *arguments]


def process_state(pid: int) -> tuple[str, int, int]:
    """(state letter, parent's pid, session) of a process; ("", 0, 0) when there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return "", 0, 0
    return fields[0].decode(), int(fields[1]), int(fields[3])


def is_alive(pid: int) -> bool:
    return process_state(pid)[0] not in ("", "Z", "X")


def catches(pid: int, number: Signals) -> bool:
    """True if a process has a function of its own for this signal."""
    status = Path(f"/proc/{pid}/status").read_text()
    (caught,) = re.findall(r"^SigCgt:\s*([0-9a-f]+)$", status, re.M)
    return bool(int(caught, 16) >> (number - 1) & 1)


def cpu_ticks(pid: int) -> int:
    """User and system time of a process, in clock ticks."""
    fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    return int(fields[11]) + int(fields[12])


def shm_names() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if name.startswith("batchpool")}


def toml(server: Settings, models: Sequence[Settings]) -> str:
    """A configuration file; TOML writes numbers, texts and lists as JSON does."""
    lines = ["[server]", *(f"{key} = {json.dumps(value)}" for key, value in server.items())]
    for model in models:
        own = {key: value for key, value in model.items() if key != "options"}
        lines += ["[[model]]", *(f"{key} = {json.dumps(value)}" for key, value in own.items())]
        options = model.get("options", {})
        lines += ["[model.options]"] if options else []
        lines += [f"{key} = {json.dumps(value)}" for key, value in options.items()]
    return "\n".join(lines) + "\n"


# methods: one for each thing that a test asks of a running pool or does to it
class Pool:
    """One `batchpool serve`. Use `serving`, or `start` for one that is not to become ready."""

    def __init__(
        self, process: subprocess.Popen[bytes], folder: Path, port: int, socket_path: str
    ) -> None:
        self.process = process
        self.pid = process.pid
        self.folder = folder
        self.port = port
        self.socket = socket_path
        self.notes = folder / "notes"
        self.tracebacks_expected = False
        self.expected_status: int | None = 0
        self.socket_is_anothers = False
        self._shm_before = shm_names()

    # -- what it says -------------------------------------------------------------------

    @property
    def log(self) -> str:
        """Everything the pool's processes wrote."""
        return (self.folder / "log").read_text(errors="replace")

    @property
    def last_line(self) -> str:
        lines = self.log.strip().splitlines()
        return lines[-1] if lines else ""

    def status(self) -> dict[str, Any]:
        return ask_status(self.socket)

    def tally(self, model: str) -> dict[str, Any]:
        """The counts of one model that stand in shared memory now."""
        found: dict[str, Any] = self.status()["models"][model]
        return found

    def lanes(self) -> list[dict[str, Any]]:
        """The lanes of local clients."""
        return [lane for lane in self.status()["lanes"] if lane["owner"].startswith("client")]

    def claimed(self) -> int:
        """Slots that local clients have claimed."""
        return sum(lane["claimed"] for lane in self.lanes())

    def pids(self, kind: str) -> list[int]:
        """The living children of one kind ("batcher", "worker", "frontend"), in order."""
        rows = self.status()["processes"]
        return [row["pid"] for row in rows if row["name"].startswith(kind) and row["pid"]]

    def client(self, **arguments: Any) -> bp.Client:
        return bp.Client(self.socket, **arguments)

    def async_client(self) -> bp.AsyncClient:
        return bp.AsyncClient(self.socket)

    # -- its processes ------------------------------------------------------------------

    def processes(self) -> list[int]:
        """Every living process of the pool's session."""
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
        return [pid for pid in pids if process_state(pid)[2] == self.pid and is_alive(pid)]

    def assert_alive(self) -> None:
        assert self.process.poll() is None, self.log

    def zombies(self) -> list[int]:
        """Children of the supervisor that ended and were not reaped."""
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
        return [pid for pid in pids if process_state(pid)[:2] == ("Z", self.pid)]

    def holdings(self) -> dict[int, tuple[int, int]]:
        """{pid: (descriptors open, lanes mapped)} of every process of the pool.

        Also of children that live for some milliseconds, to close what clients leave.
        """
        found = {}
        for pid in self.processes():
            with suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
                mappings = Path(f"/proc/{pid}/maps").read_text().count("memfd:batchpool-lane")
                found[pid] = len(os.listdir(f"/proc/{pid}/fd")), mappings
        return found

    def signal(self, number: Signals) -> None:
        """To the supervisor alone."""
        os.kill(self.pid, number)

    def signal_all(self, number: Signals) -> None:
        """To every process of the group at once, as a terminal or systemd does."""
        os.killpg(self.pid, number)

    # -- its life -----------------------------------------------------------------------

    def wait_ready(self) -> None:
        session: list[Session] = []

        def is_ready() -> bool:
            if self.process.poll() is not None:
                raise AssertionError(f"the pool ended while starting:\n{self.log}")
            try:
                if not session:
                    session.append(Session.connect(self.socket))
                return session[0].state_page.is_ready()
            except bp.PoolStopped:
                return False

        try:
            until(is_ready, "the pool's readiness")
        finally:
            for opened in session:
                opened.close()

    def wait_end(self, timeout_s: float = PATIENCE_S) -> int:
        return self.process.wait(timeout_s)

    def stop(self) -> int:
        """SIGTERM, and the exit status."""
        self.signal(signal.SIGTERM)
        return self.wait_end()

    def assert_all_answered(self) -> None:
        """It has stopped and says that it has answered all that it had accepted.

        A client that stands still for a second, as this process may, takes its answers only then.
        """
        ends = ("every accepted request was answered", "answered rows were not fetched by")
        assert any(end in self.last_line for end in ends), self.log

    def end_at_once(self) -> None:
        """SIGKILL to the supervisor, which must take every other process with it."""
        self.expected_status = -signal.SIGKILL
        self.signal(signal.SIGKILL)
        self.wait_end()

    def again(self, *models: str | Settings, **arguments: Any) -> AbstractContextManager[Pool]:
        """Another pool, ready, at the place of this one, which has ended."""
        server = {"socket": self.socket, **arguments.pop("server", {})}
        return serving(*models, server=server, port=self.port, **arguments)

    def assert_nothing_left(self) -> None:
        until(lambda: not self.processes(), "the end of every process of the pool", 30)
        assert shm_names() - self._shm_before == set()

    def close(self, *, check: bool) -> None:
        """End it whatever its state; with `check`, assert that it ended as expected."""
        try:
            if self.process.poll() is None and check:
                self.stop()
            if check:
                assert (
                    self.process.wait(PATIENCE_S) == self.expected_status
                    or self.expected_status is None
                )
                self.assert_nothing_left()
                if not self.tracebacks_expected:
                    assert "Traceback" not in self.log
        except BaseException:
            check = False
            raise
        finally:
            if not check:
                print(self.log)
            for pid in self.processes():
                os.kill(pid, signal.SIGKILL)
            self.process.wait()
            shutil.rmtree(self.folder, ignore_errors=True)


def in_small_shm() -> list[str]:
    """A command that runs another with a /dev/shm of 16 MB, in a mount namespace of its own."""
    wrapper = [
        "unshare", "-m", "sh", "-c",
        'mount -t tmpfs -o size=16m tmpfs /dev/shm && exec "$0" "$@"',
    ]  # fmt: skip
    if shutil.which("unshare") is None:
        pytest.skip("unshare is not installed")
    tried = subprocess.run([*wrapper, "true"], capture_output=True, check=False)
    if tried.returncode:
        pytest.skip(f"no mount namespace here: {tried.stderr.decode().strip()}")
    return wrapper


def start(
    *models: str | Settings,
    server: Settings | None = None,
    flags: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    port: int | None = None,
    wrapper: Sequence[str] = (),
    fds: Sequence[int] = (),
    cwd: Path = ROOT,
    beside: Mapping[str, str] | None = None,
) -> Pool:
    """Start a pool and do not wait. A model is a class of models.py, or its whole table.

    wrapper: a command that runs the rest of its command line, as `unshare`. fds: what it inherits.
    cwd: its current directory. beside: files beside its configuration file, by name.
    """
    # The path of a unix socket must be short.
    folder = Path(tempfile.mkdtemp(prefix="bp-", dir="/tmp"))
    (folder / "notes").mkdir()
    port = free_port() if port is None else port
    tables = [model_table(model) for model in models]
    settings: dict[str, Any] = {"port": port, "socket": str(folder / "s"), "frontends": 1}
    settings.update(server or {})
    (folder / "pool.toml").write_text(toml(settings, tables))
    for name, text in (beside or {}).items():
        (folder / name).write_text(text)
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(
            [*_TIED, *wrapper, *command("serve", str(folder / "pool.toml"), *flags)],
            cwd=cwd,
            env={**os.environ, NOTES: str(folder / "notes"), **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=fds,
        )
    return Pool(process, folder, port, settings["socket"])


def model_table(model: str | Settings) -> dict[str, Any]:
    """The table of a model. None takes back a setting that models of tests have.

    A request waits for its worker's successor, and a batch at its gate, for as long as a test does.
    """
    given = {"import": model} if isinstance(model, str) else dict(model)
    if ":" not in given["import"]:
        given["import"] = f"{MODELS}:{given['import']}"
    patient = {"request_timeout_s": PATIENCE_S, "batch_timeout_s": PATIENCE_S}
    table = {"devices": "cpu", "max_wait_ms": 1, **patient, **given}
    return {key: value for key, value in table.items() if value is not None}


@contextmanager
def serving(*models: str | Settings, **arguments: Any) -> Iterator[Pool]:
    """A pool that is ready; see the module's docstring for how it ends."""
    with started(*models, **arguments) as pool:
        pool.wait_ready()
        yield pool


@contextmanager
def started(*models: str | Settings, **arguments: Any) -> Iterator[Pool]:
    """A pool that may not be ready yet, with the same end."""
    pool = start(*models, **arguments)
    try:
        yield pool
    except BaseException:
        pool.close(check=False)
        raise
    pool.close(check=True)
