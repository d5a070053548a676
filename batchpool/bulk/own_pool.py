"""A pool for one run: started with the options of `batchpool serve`, and stopped after it."""

from __future__ import annotations

import ctypes
import fcntl
import glob
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from batchpool.client.session import Session
from batchpool.core.errors import PoolError, StartError
from batchpool.process.python_command import package_environment, python_command

_PREFIX = "batchpool-run-"
_POLL_S = 0.05
_END_S = 60.0
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


@contextmanager
def own_pool(words: Sequence[str], more: Mapping[str, str] | None = None) -> Iterator[str]:
    """Start `batchpool serve` with these words; the path of its socket, once it is ready.

    more: variables of its environment beside ours. Its HTTP side is a unix socket in the same
    folder, unless the words say otherwise. It ends with this process, whatever ends that.
    StartError where it does not come up.
    """
    remove_left_folders()
    folder, held = _new_folder()
    path = os.path.join(folder, "pool")
    given = " ".join(words)
    http = [] if "--port" in given or "--uds" in given else ["--port", "0", "--uds", f"{path}.http"]
    few = [] if "--frontends" in given else ["--frontends", "1"]
    quiet = [] if "--log-level" in given else ["--log-level", "warning"]
    parent = os.getpid()

    def end_with_parent() -> None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)

    process = subprocess.Popen(
        [*python_command("batchpool"), "serve", *words, "--socket", path, *http, *few, *quiet],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        env=package_environment({**os.environ, **(more or {})}),
        start_new_session=True,  # Ctrl-C is for the run, which stops the pool when it is done
        preexec_fn=end_with_parent,  # noqa: PLW1509 - before the run has threads
    )
    try:
        _wait_ready(process, path)
        yield path
    finally:
        _end(process)
        shutil.rmtree(folder, ignore_errors=True)
        os.close(held)


def remove_left_folders() -> None:
    """Remove the empty folders of runs that were killed; a run that goes on holds its own."""
    for folder in glob.glob(os.path.join(glob.escape(tempfile.gettempdir()), f"{_PREFIX}*")):
        with suppress(OSError):  # of somebody else, of a run that goes on, or not empty
            held = _held(folder)
            try:
                os.rmdir(folder)
            finally:
                os.close(held)


def _new_folder() -> tuple[str, int]:
    """A folder of this run, and the descriptor that holds it."""
    while True:
        folder = tempfile.mkdtemp(prefix=_PREFIX)
        with suppress(OSError):  # another run that begins took it for one that is left
            held = _held(folder)
            if os.path.isdir(folder):
                return folder, held
            os.close(held)


def _held(folder: str) -> int:
    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(held)
        raise
    return held


def _wait_ready(process: subprocess.Popen[bytes], path: str) -> None:
    session: Session | None = None
    try:
        while session is None or not session.state_page.is_ready():
            if process.poll() is not None:
                raise StartError(
                    f"the pool of this run did not start (status {process.returncode}); its lines"
                    " above say why"
                )
            if session is None:
                with suppress(PoolError):
                    session = Session.connect(path)
            time.sleep(_POLL_S)
    finally:
        if session is not None:
            session.close()


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
