"""Where socket and state are, by configuration, service, user and port."""

from __future__ import annotations

import pytest

from batchpool.core.config.paths import (
    SOCKET_PATH_BYTES,
    port_of_socket,
    socket_name,
    socket_path,
    state_dir,
)
from batchpool.core.config.server_table import ServerConfig
from batchpool.core.errors import ConfigError

XDG = {"XDG_RUNTIME_DIR": "/run/user/7", "XDG_STATE_HOME": "/home/u/.state", "HOME": "/home/u"}
SERVICE = {**XDG, "RUNTIME_DIRECTORY": "/run/pool:/run/other", "STATE_DIRECTORY": "/var/lib/pool"}


@pytest.mark.parametrize(
    ("env", "uid", "path"),
    [
        ({}, 0, "/run/batchpool/batchpool.sock"),
        (XDG, 0, "/run/batchpool/batchpool.sock"),
        (SERVICE, 0, "/run/pool/batchpool.sock"),
        (SERVICE, 7, "/run/pool/batchpool.sock"),
        (XDG, 7, "/run/user/7/batchpool/batchpool.sock"),
        ({}, 7, "/tmp/batchpool-7/batchpool.sock"),
        ({"RUNTIME_DIRECTORY": "", "XDG_RUNTIME_DIR": ""}, 7, "/tmp/batchpool-7/batchpool.sock"),
    ],
)
def test_the_socket_by_service_and_user(env: dict[str, str], uid: int, path: str) -> None:
    assert socket_path(ServerConfig(), env, uid) == path


def test_another_port_has_another_socket() -> None:
    assert socket_path(ServerConfig(port=9000), {}, 0) == "/run/batchpool/batchpool-9000.sock"


@pytest.mark.parametrize("port", [0, 7, 8000, 65535])
def test_the_name_of_a_socket_tells_its_port(port: int) -> None:
    assert port_of_socket(socket_name(port)) == port


@pytest.mark.parametrize(
    "name",
    ["batchpool-9.sock.tasks", "batchpool-09.sock", "batchpool-x.sock", "", "9", "pool.sock"],
)
def test_other_names_tell_no_port(name: str) -> None:
    assert port_of_socket(name) is None


def test_a_configured_socket_is_taken_as_it_is() -> None:
    server = ServerConfig(port=9000, socket="/srv/pool.sock")
    assert socket_path(server, SERVICE, 0) == "/srv/pool.sock"


def test_a_path_the_kernel_cannot_bind_is_refused() -> None:
    longest = "/" + "é" * ((SOCKET_PATH_BYTES - 1) // 2)
    assert len(longest.encode()) == SOCKET_PATH_BYTES
    assert socket_path(ServerConfig(socket=longest), {}, 0) == longest
    with pytest.raises(ConfigError, match=r"has 108 bytes; a unix socket's path has at most 107$"):
        socket_path(ServerConfig(socket=longest + "x"), {}, 0)


@pytest.mark.parametrize(
    ("env", "uid", "path"),
    [
        (SERVICE, 7, "/var/lib/pool"),
        (XDG, 0, "/var/lib/batchpool"),
        (XDG, 7, "/home/u/.state/batchpool"),
        ({"HOME": "/home/u"}, 7, "/home/u/.local/state/batchpool"),
        ({}, 7, "/tmp/batchpool-7/state"),
    ],
)
def test_the_state_directory(env: dict[str, str], uid: int, path: str) -> None:
    assert state_dir(ServerConfig(), env, uid) == path


def test_a_configured_state_directory_is_taken_as_it_is() -> None:
    assert state_dir(ServerConfig(state_dir="/srv/state"), SERVICE, 0) == "/srv/state"
