"""Local clients of other users, by the group of the socket of local clients."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.process.pool_under_test import ROOT, serving
from tests.process.service_double import clients_socket, passing

GROUP, USER = 54_321, 65_534  # a group without a name and without members, and nobody
AS_OTHER = """
import os, sys
import numpy as np
import batchpool as bp
bp.Client
os.setgroups([int(group) for group in sys.argv[2:]])
os.setgid({user})
os.setuid({user})
with bp.Client(sys.argv[1]) as client:
    print(client.infer("affine", x=np.ones((1, 4), np.float32))["y"].tolist())
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A directory that everybody may search."""
    with tempfile.TemporaryDirectory(prefix="bp-", dir="/tmp") as name:
        os.chmod(name, 0o755)
        yield Path(name)


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to become another user")
def test_members_of_the_sockets_group_are_served_and_others_told_its_name(folder: Path) -> None:
    """C49: as SocketGroup= and SocketMode=0660 of the shipped unit set it."""
    path = str(folder / "clients")

    def ask(*groups: int) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", AS_OTHER.format(user=USER), path, *map(str, groups)],
            cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip

    with clients_socket(path) as clients:
        os.chown(path, 0, GROUP)
        os.chmod(path, 0o660)
        with serving("Affine", **passing([clients], "clients"), server={"socket": path}):
            member = ask(GROUP)
            assert (member.returncode, member.stderr) == (0, "")
            assert member.stdout == "[[3.0, 3.0, 3.0, 3.0]]\n"
            other = ask()
            assert other.returncode == 1
            said = other.stderr.strip().splitlines()[-1]
            assert f"no permission to connect to the pool at {path}" in said
            assert f"only members of its group {GROUP} may" in said
