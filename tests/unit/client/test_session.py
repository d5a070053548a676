"""Why a pool cannot be connected to, in words that say what to do."""

from __future__ import annotations

import grp
import os
import pwd
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from batchpool.client.session import Session
from batchpool.core.errors import NotReady, PoolStopped
from tests.unit.shm.scarcity import no_descriptors, open_files

NOBODY = 65534
NO_NAME = 54321  # neither a user's nor a group's
CONNECT = """
import os, sys
from batchpool.client.session import Session
from batchpool.core.errors import PoolStopped
os.setgroups([])
os.setgid(int(sys.argv[2]))
os.setuid(int(sys.argv[2]))
try:
    Session.connect(sys.argv[1])
except PoolStopped as exc:
    print(exc)
"""
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")


@pytest.fixture
def place() -> Iterator[Path]:
    """A socket that listens, in a folder that everybody may search: not in one of pytest's, which
    every run of pytest shuts to others."""
    with (
        tempfile.TemporaryDirectory() as folder,
        socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock,
    ):
        Path(folder).chmod(0o755)
        path = Path(folder, "clients")
        sock.bind(str(path))
        sock.listen()
        yield path


def refused(path: Path, uid: int = NOBODY) -> str:
    """The error that a user without groups gets."""
    run = subprocess.run(
        [sys.executable, "-c", CONNECT, str(path), str(uid)],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    return run.stdout.strip()


@needs_root
def test_a_user_outside_the_group_is_told_how_to_join_it(place: Path) -> None:
    """C49: the command that helps."""
    group = next(entry for entry in grp.getgrall() if entry.gr_gid not in (0, NOBODY))
    os.chown(place, 0, group.gr_gid)
    place.chmod(0o660)
    me, name = pwd.getpwuid(NOBODY).pw_name, group.gr_name
    assert refused(place) == (
        f"no permission to connect to the pool at {place}: only members of its group {name} may;"
        f" an administrator adds you with `usermod -aG {name} {me}`, which counts from your next"
        " login on"
    )


@needs_root
def test_a_group_or_user_without_a_name_is_a_number(place: Path) -> None:
    os.chown(place, 0, NO_NAME)
    place.chmod(0o660)
    assert f"`usermod -aG {NO_NAME} {NO_NAME + 1}`" in refused(place, NO_NAME + 1)


@needs_root
def test_a_socket_of_its_owner_alone_names_him(place: Path) -> None:
    """C49: the object, its owner and the caller."""
    place.chmod(0o600)
    owner, me = (pwd.getpwuid(uid).pw_name for uid in (0, NOBODY))
    assert refused(place).endswith(f": only its owner {owner} may, and you are {me}")


@needs_root
def test_a_directory_in_the_way_is_told(place: Path) -> None:
    place.parent.chmod(0o700)
    assert refused(place).endswith(": its directory cannot be searched (Permission denied)")


def test_no_socket_and_nobody_behind_it_are_two_things(place: Path) -> None:
    with pytest.raises(PoolStopped, match=r"there is no such socket; is the server running\?"):
        Session.connect(str(place) + "x")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.bind(str(place) + "y")
    with pytest.raises(PoolStopped, match=r"the socket is left over from one that has stopped"):
        Session.connect(str(place) + "y")
    Path(str(place) + "z").write_text("no socket")
    with pytest.raises(PoolStopped, match=r"z is no socket: the path of a pool's control socket"):
        Session.connect(str(place) + "z")


@pytest.mark.parametrize("but", range(3))
def test_a_client_without_descriptors_is_told_so_and_loses_none(place: Path, but: int) -> None:
    before = open_files()
    text = f"no room here for the pool at {place}: too many open files: this process may have"
    with no_descriptors(but=but), pytest.raises(NotReady) as caught:
        Session.connect(str(place), timeout_s=0.01)
    assert str(caught.value).startswith((text, f"the pool at {place} did not answer"))
    assert open_files() == before
