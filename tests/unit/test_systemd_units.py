"""The files of systemd/ agree with the code, with each other and with systemd itself."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from batchpool.cli.reference import example_toml
from batchpool.core.config.paths import socket_path, state_dir
from batchpool.core.config.server_table import ServerConfig

SYSTEMD = Path(__file__).parents[2] / "systemd"
UNITS = ("batchpool.service", "batchpool.socket", "batchpool-clients.socket")
MOST_EXPOSURE = 19  # tenths; below 2.0
needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed"
)


def settings(unit: str) -> dict[str, list[str]]:
    """{key: values} of a unit file, of all its sections."""
    found: dict[str, list[str]] = {}
    for line in (SYSTEMD / unit).read_text().splitlines():
        if match := re.fullmatch(r"(\w+)=(.*)", line):
            found.setdefault(match[1], []).append(match[2])
    return found


def the(unit: str, key: str) -> str:
    (value,) = settings(unit)[key]
    return value


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The units, with a program that exists here."""
    for unit in UNITS:
        text = (SYSTEMD / unit).read_text()
        (tmp_path / unit).write_text(text.replace("/opt/batchpool/bin/batchpool", sys.executable))
    return tmp_path


@needs_systemd
def test_systemd_finds_nothing_wrong(installed: Path) -> None:
    paths = [str(installed / unit) for unit in UNITS]
    run = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *paths],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    said = [line for line in run.stderr.splitlines() if "batchpool" in line or "bp" in line]
    assert (run.returncode, said) == (0, [])


@needs_systemd
def test_the_service_is_hardened(installed: Path) -> None:
    run = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", f"--threshold={MOST_EXPOSURE}",
         str(installed / UNITS[0])],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    assert "Overall exposure level for batchpool.service: 1." in run.stdout


def test_the_user_is_one_that_never_logs_in() -> None:
    """C59: logind takes the shared memory of those whose last session ends; a system user has
    none, and the manual says what to set for any other."""
    user = the(UNITS[0], "User")
    sysusers = (SYSTEMD / "sysusers.d/batchpool.conf").read_text().splitlines()
    (line,) = [line for line in sysusers if line.startswith("u")]
    kind, name, number, *_ = line.split()
    assert (kind, name, number) == ("u", user, "-"), "a number of the system's own choice"
    manual = (SYSTEMD / "README.md").read_text()
    assert "use a system user, or set `RemoveIPC=no`" in " ".join(manual.split())


def test_what_would_take_the_gpus_away_is_not_set() -> None:
    found = settings(UNITS[0])
    for key in ("PrivateDevices", "MemoryDenyWriteExecute", "ProtectClock", "DevicePolicy"):
        assert key not in found
    assert found["LimitMEMLOCK"] == ["infinity"]


def test_its_times_fit_the_defaults_of_the_configuration() -> None:
    server = ServerConfig()
    assert int(the(UNITS[0], "WatchdogSec")) >= server.stall_timeout_s + 20
    assert int(the(UNITS[0], "TimeoutStopSec")) >= server.drain_s + server.unload_timeout_s + 15


def test_a_reload_is_asked_of_the_pool_that_the_unit_started() -> None:
    program, serve, config = the(UNITS[0], "ExecStart").split()
    assert serve == "serve"
    assert the(UNITS[0], "ExecReload") == f"{program} reload {config}"


def test_the_sockets_are_where_client_and_command_line_look_for_them() -> None:
    env = {
        "RUNTIME_DIRECTORY": "/run/" + the(UNITS[0], "RuntimeDirectory"),
        "STATE_DIRECTORY": "/var/lib/" + the(UNITS[0], "StateDirectory"),
    }
    server = ServerConfig()
    assert the(UNITS[2], "ListenSequentialPacket") == socket_path(server, env, 999)
    assert the(UNITS[1], "ListenStream") == f"{server.host}:{server.port}"
    assert the(UNITS[0], "Sockets").split() == list(UNITS[1:])
    assert the(UNITS[2], "Service") == UNITS[0]
    user = re.search(
        r'^u (\S+) - ".*" (\S+)$', (SYSTEMD / "sysusers.d/batchpool.conf").read_text(), re.M
    )
    assert user is not None
    assert user.groups() == ("batchpool", state_dir(server, env, 999))
    assert {the(UNITS[0], "User"), the(UNITS[0], "Group"), the(UNITS[2], "SocketGroup")} == {
        user[1]
    }


def test_the_example_is_what_the_command_prints() -> None:
    text = (SYSTEMD / "batchpool.toml").read_text()
    assert text == example_toml(), "batchpool config > systemd/batchpool.toml"
