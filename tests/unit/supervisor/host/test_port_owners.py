"""The owner of a port according to /proc."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from batchpool.supervisor.host.listen import PortTaken, try_port
from batchpool.supervisor.host.port_owners import PortOwner, port_owners

LINE = "   0: 0100007F:{port:04X} 00000000:0000 {state} 00000000:00000000 00:00 0 0 0 {inode} 1"


def test_this_process_is_found_while_it_listens() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
        assert port_owners(port) == [], "it does not listen yet"
        with pytest.raises(PortTaken, match=rf"port {port} on 127\.0\.0\.1 is taken by another"):
            try_port("127.0.0.1", port)
        sock.listen()
        assert [one.pid for one in port_owners(port)] == [os.getpid()]
        with pytest.raises(
            PortTaken, match=rf"is taken by .* \(pid {os.getpid()}\); stop"
        ) as caught:
            try_port("127.0.0.1", port)
        assert [one.pid for one in caught.value.by] == [os.getpid()]
    assert port_owners(port) == []
    try_port("127.0.0.1", port)


def add_process(proc: Path, pid: int, command: str, *inodes: int) -> None:
    fds = proc / str(pid) / "fd"
    fds.mkdir(parents=True)
    (fds / "0").symlink_to("/dev/null")
    for number, inode in enumerate(inodes, 3):
        (fds / str(number)).symlink_to(f"socket:[{inode}]")
    (proc / str(pid) / "cmdline").write_bytes(command.replace(" ", "\0").encode() + b"\0")


def test_only_those_who_listen_on_the_port(tmp_path: Path) -> None:
    (tmp_path / "net").mkdir()
    lines = [
        "  sl  local_address rem_address   st ...",
        LINE.format(port=8000, state="0A", inode=11),
        LINE.format(port=8000, state="01", inode=12),
        LINE.format(port=8001, state="0A", inode=13),
    ]
    (tmp_path / "net" / "tcp").write_text("\n".join(lines) + "\n")
    add_process(tmp_path, 30, "nginx: worker", 11)
    add_process(tmp_path, 4, "/usr/bin/python3 -m batchpool.frontend --heartbeat 1", 11, 13)
    add_process(tmp_path, 5, "curl http://127.0.0.1:8000", 12)
    (tmp_path / "6").mkdir()
    found = port_owners(8000, tmp_path)
    assert [one.name for one in found] == ["python3 (pid 4)", "nginx (pid 30)"]
    assert [one.is_batchpool for one in found] == [True, False]
    assert [one.pid for one in port_owners(8001, tmp_path)] == [4]
    assert port_owners(8002, tmp_path) == []


@pytest.mark.parametrize(
    ("command", "ours"),
    [
        ("/opt/venv/bin/batchpool serve pool.toml", True),
        ("/opt/venv/bin/python /opt/venv/bin/batchpool serve", True),
        ("python -m batchpool serve", True),
        ("python -m batchpool.frontend --heartbeat 1", True),
        ("python -P -X dev -m batchpool.frontend --heartbeat 1", True),
        ("python -m http.server 8000", False),
        ("python -m", False),
        ("python server.py -x batchpool", False),
        ("caddy run batchpool.toml", False),
    ],
)
def test_what_a_batchpool_is_called(command: str, ours: bool) -> None:
    assert PortOwner(7, tuple(command.split())).is_batchpool is ours
