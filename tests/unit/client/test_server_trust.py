"""A client sends its requests to nobody who could only have taken the pool's place."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import batchpool as bp
from batchpool.client.server_trust import why_not_trusted

ME, STRANGER = 1000, 65534


@pytest.mark.parametrize("uid", [0, ME])
def test_root_and_the_own_user_are_trusted_anywhere(uid: int) -> None:
    assert why_not_trusted("/tmp/s", uid, ME) == ""


def test_another_user_is_trusted_where_only_he_or_root_could_make_the_socket() -> None:
    assert why_not_trusted("/usr/lib/s", STRANGER, ME) == ""


@pytest.mark.parametrize("path", ["/tmp/s", "/tmp/batchpool-1000/batchpool.sock"])
def test_another_user_is_not_trusted_where_everybody_may_make_one(path: str) -> None:
    why = why_not_trusted(path, STRANGER, ME)
    assert why.startswith(f"the socket {path} is served by uid {STRANGER}")
    assert "expected root or uid 1000, since everybody may put a socket below /tmp" in why


def test_a_private_folder_below_an_open_one_protects_nobody(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    (shared / "own").mkdir(0o700, parents=True)
    shared.chmod(0o777)
    assert f"below {shared}:" in why_not_trusted(f"{shared}/own/s", STRANGER, ME)


SERVE = """
import os, socket, sys
os.setgid(65534); os.setuid(65534)
sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
sock.bind(sys.argv[1]); os.chmod(sys.argv[1], 0o666); sock.listen(5)
print(flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to serve a socket as another user")
def test_a_client_refuses_a_socket_that_a_stranger_serves() -> None:
    folder = Path(tempfile.mkdtemp(prefix="bp-", dir="/tmp"))
    os.chmod(folder, 0o777)
    path = str(folder / "s")
    with subprocess.Popen(
        [sys.executable, "-c", SERVE, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as server:
        assert server.stdout is not None
        server.stdout.readline()
        with pytest.raises(bp.PoolStopped, match=f"is served by uid {STRANGER}"):
            bp.Client(path)
        server.kill()
    with pytest.raises(bp.PoolStopped, match="left over"):
        bp.Client(path)
    os.unlink(path)
    os.rmdir(folder)
