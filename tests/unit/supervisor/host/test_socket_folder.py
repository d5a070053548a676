"""A control socket stands where nobody else could have put one, and no link is followed to it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from batchpool.core.errors import StartError
from batchpool.supervisor.host.listen import ControlSocket

STRANGER = 65534
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="needs root to own files as another user")


def opened(folder: Path) -> None:
    ControlSocket(str(folder / "s")).close()


def refusal(folder: Path) -> str:
    with pytest.raises(StartError) as caught:
        opened(folder)
    return str(caught.value)


def test_a_directory_is_made_for_the_socket(tmp_path: Path) -> None:
    opened(tmp_path / "new")
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o755
    assert list((tmp_path / "new").iterdir()) == []


@needs_root
def test_a_directory_of_somebody_else_is_not_taken(tmp_path: Path) -> None:
    """Its owner could replace the socket by one of his own."""
    (tmp_path / "theirs").mkdir()
    os.chown(tmp_path / "theirs", STRANGER, STRANGER)
    assert f"belongs to uid {STRANGER}, who could put another socket" in refusal(
        tmp_path / "theirs"
    )


@needs_root
def test_a_link_that_somebody_else_made_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "own")
    opened(tmp_path / "link")
    os.lchown(tmp_path / "link", STRANGER, STRANGER)
    assert f"is a symbolic link of uid {STRANGER}" in refusal(tmp_path / "link")
    assert list((tmp_path / "own").iterdir()) == []


@pytest.mark.parametrize("mode", [0o777, 0o757])
def test_a_directory_that_everybody_may_write_is_not_taken(tmp_path: Path, mode: int) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(mode)
    assert f"has mode {mode:04o}: others could put" in refusal(tmp_path / "open")
    (tmp_path / "open").chmod(mode | 0o1000)  # sticky, as /tmp
    opened(tmp_path / "open")


@needs_root
def test_a_directory_that_another_group_may_write_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / "team").mkdir()
    (tmp_path / "team").chmod(0o775)
    opened(tmp_path / "team")
    os.chown(tmp_path / "team", 0, STRANGER)
    assert "has mode 0775" in refusal(tmp_path / "team")


def test_a_lock_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    (tmp_path / "s.lock").symlink_to(precious)
    assert "is a symbolic link, which is not followed" in refusal(tmp_path)
    assert not precious.exists()


def test_a_lock_that_is_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "s.lock")
    assert "s.lock is prw" in refusal(tmp_path)


@needs_root
def test_a_lock_of_somebody_else_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / "s.lock").touch()
    os.chown(tmp_path / "s.lock", STRANGER, STRANGER)
    text = refusal(tmp_path)
    # The kernel refuses it by itself in a sticky directory (fs.protected_regular).
    assert f"of uid {STRANGER}; expected a file of uid 0" in text
