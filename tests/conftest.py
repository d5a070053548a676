"""Tests may run in several processes (`-n auto`): each has a /dev/shm of its own.

Some tests look at, or for, names in /dev/shm that a pool has left there, and a starting pool
removes what dead ones left; so two such tests must not see the same directory. Where there are
no mount namespaces `-n auto` means one process.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Generator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from batchpool.core.compiled import COMPILED
from bench.support.machine import complaint
from tests.lazy import SLOW_TO_IMPORT, calculate_in_one_thread, imported_while_collecting
from tests.scopes import scheduling

_CLONE_NEWNS = 0x00020000
_MS_REC, _MS_PRIVATE = 0x4000, 0x40000
# No property depends on how fast the machine is, nor on chance: what is tested fails each time or
# never. `--hypothesis-profile explore` draws other examples each time.
settings.register_profile(
    "any machine",
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("explore", settings.get_profile("any machine"), derandomize=False)
settings.load_profile("any machine")

_MOST = 4  # more would wait for one another's pools

# Also where the environment says that no bytecode is written: every process of a run collects all
# tests, and the processes under test, hundreds of each kind, import the same modules. What they
# import of users' files, which tests change within a second, they still compile anew.
sys.dont_write_bytecode = False


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    private = ["unshare", "-m", "mount", "-t", "tmpfs", "tmpfs", "/dev/shm"]
    try:
        subprocess.run(private, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        return 0
    return min(_MOST, len(os.sched_getaffinity(0)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    return scheduling(config, log) if config.getoption("dist") == "loadscope" else None


def pytest_configure() -> None:
    if why := complaint():
        pytest.exit(why, 4)
    if "PYTEST_XDIST_WORKER" in os.environ:
        _have_own_dev_shm()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Escapes halves of surrogate pairs in logged text, which cannot travel between processes."""
    report = yield
    report.sections = [
        (title, text.encode(errors="backslashreplace").decode()) for title, text in report.sections
    ]
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call() -> None:
    """Of torch that the files, the fixtures or the test before have imported by themselves."""
    calculate_in_one_thread()


@pytest.fixture(scope="session", autouse=True)
def _hangups_reach_the_processes_under_test() -> None:
    """Under nohup SIGHUP is ignored, and a pool that is started so ignores it too.

    A function of Python's is not passed on by exec, and keeps the hangup from ending this process.
    """
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if COMPILED:
        skip = pytest.mark.skip(reason="the modules are compiled")
        for item in items:
            if item.get_closest_marker("interpreted"):
                item.add_marker(skip)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Note the slow imports of the collected files for a test of the house, and let the garbage
    collector never walk what is there now: tests that look for garbage would walk it dozens of
    times."""
    session.config.stash[imported_while_collecting] = [
        name for name in SLOW_TO_IMPORT if name in sys.modules
    ]
    gc.collect()
    gc.freeze()


def _have_own_dev_shm() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    calls: tuple[Callable[[], int], ...] = (
        lambda: libc.unshare(_CLONE_NEWNS),
        lambda: libc.mount(None, b"/", None, ctypes.c_ulong(_MS_REC | _MS_PRIVATE), None),
        lambda: libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", ctypes.c_ulong(0), None),
    )
    for call in calls:
        if call() != 0:
            error = ctypes.get_errno()
            raise OSError(error, f"no /dev/shm of its own: {os.strerror(error)}; run with -n 0")
