"""Default paths of the pool's files. Environment and user id are arguments."""

from __future__ import annotations

from collections.abc import Mapping

from batchpool.core.config.server_table import ServerConfig
from batchpool.core.errors import ConfigError

# The environment variable with more folders in which the modules of models are looked for.
MODEL_PATH = "BATCHPOOL_MODEL_PATH"
# sun_path of a unix socket address, less its closing zero byte.
SOCKET_PATH_BYTES = 107


def socket_path(server: ServerConfig, env: Mapping[str, str], uid: int) -> str:
    """The path of the unix socket: as configured, else by port, service directories and user.

    Raises ConfigError for a path that is too long for a unix socket.
    """
    path = server.socket or f"{_runtime_dir(env, uid)}/{socket_name(server.port)}"
    size = len(path.encode("utf-8", "surrogateescape"))
    if size > SOCKET_PATH_BYTES:
        raise ConfigError(
            f"socket = {path!r} has {size} bytes; a unix socket's path has at most"
            f" {SOCKET_PATH_BYTES}"
        )
    return path


def socket_name(port: int) -> str:
    """The file name of the socket. It contains the port, by which two pools of a host differ."""
    return "batchpool.sock" if port == 8000 else f"batchpool-{port}.sock"


def port_of_socket(name: str) -> int | None:
    """The port in the file name of a socket that `socket_name` made; None for any other name."""
    digits = name.removeprefix("batchpool-").removesuffix(".sock")
    port = int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 6 else 8000
    return port if socket_name(port) == name else None


def state_dir(server: ServerConfig, env: Mapping[str, str], uid: int) -> str:
    """The directory of files that outlive the pool: as configured, else by service and user."""
    if server.state_dir:
        return server.state_dir
    if env.get("STATE_DIRECTORY"):
        return _first(env["STATE_DIRECTORY"])
    if uid == 0:
        return "/var/lib/batchpool"
    if env.get("XDG_STATE_HOME"):
        return env["XDG_STATE_HOME"] + "/batchpool"
    if env.get("HOME"):
        return env["HOME"] + "/.local/state/batchpool"
    return f"/tmp/batchpool-{uid}/state"


def task_socket_path(socket: str) -> str:
    """The path of the unix socket of the task process. socket: of the pool.

    Raises ConfigError for a path that is too long for a unix socket.
    """
    path = socket + ".tasks"
    size = len(path.encode("utf-8", "surrogateescape"))
    if size > SOCKET_PATH_BYTES:
        raise ConfigError(
            f"socket = {socket!r}: the socket of the tasks, {path!r}, has {size} bytes; a unix"
            f" socket's path has at most {SOCKET_PATH_BYTES}"
        )
    return path


def task_folder(server: ServerConfig, env: Mapping[str, str], uid: int) -> str:
    """The folder of the tasks of a pool. It contains the port, by which two pools of a host
    differ."""
    name = "tasks" if server.port == 8000 else f"tasks-{server.port}"
    return f"{state_dir(server, env, uid)}/{name}"


def batch_folder(server: ServerConfig, env: Mapping[str, str], uid: int) -> str:
    """The folder of the files and batches of a pool, by its port as that of its tasks."""
    name = "batches" if server.port == 8000 else f"batches-{server.port}"
    return f"{state_dir(server, env, uid)}/{name}"


def _runtime_dir(env: Mapping[str, str], uid: int) -> str:
    if env.get("RUNTIME_DIRECTORY"):
        return _first(env["RUNTIME_DIRECTORY"])
    if uid == 0:
        return "/run/batchpool"
    if env.get("XDG_RUNTIME_DIR"):
        return env["XDG_RUNTIME_DIR"] + "/batchpool"
    return f"/tmp/batchpool-{uid}"


def _first(directories: str) -> str:
    """The first of the directories of a service, which systemd joins with colons."""
    return directories.split(":", maxsplit=1)[0]
