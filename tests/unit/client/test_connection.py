"""The control connection: questions and replies keep their order, whatever comes late."""

from __future__ import annotations

import errno
import os
import socket
import threading
from pathlib import Path

import pytest

from batchpool.client import connection as connection_module
from batchpool.client.connection import Connection, cannot_connect
from batchpool.client.task_questions import TaskQuestions
from batchpool.control.channel import Channel, Closed, pair
from batchpool.control.edges import FROM_CLIENT
from batchpool.control.messages import Drain, DrainState, GetStatus, StatusReply
from batchpool.core.errors import NotReady, PoolStopped


def test_a_reply_that_comes_late_is_not_taken_for_that_of_the_next_question() -> None:
    ours, theirs = pair()
    connection = Connection(ours, "here")
    with pytest.raises(NotReady, match=r"the pool at here did not answer within 0\.01 s"):
        connection.ask(GetStatus(), StatusReply, timeout_s=0.01)
    assert isinstance(theirs.receive(FROM_CLIENT)[0], GetStatus)
    with pytest.raises(Closed):  # the pool is told, and the late reply goes nowhere
        theirs.send(StatusReply({"late": True}))
    with pytest.raises(PoolStopped):
        connection.ask(GetStatus(), StatusReply, timeout_s=0.01)
    assert connection.is_over()
    ours.close()
    theirs.close()


@pytest.mark.parametrize(("where", "pool"), [("/a.sock", "the pool at /a.sock"), ("", "the pool")])
def test_the_end_of_a_pool_names_its_socket_where_callers_can_know_it(
    where: str, pool: str
) -> None:
    ours, theirs = pair()
    connection = Connection(ours, where)
    theirs.close()
    with pytest.raises(PoolStopped, match=f"^{pool} has stopped"):
        connection.ask(GetStatus(), StatusReply, timeout_s=5)
    ours.close()


class PatchedSocket(socket.socket):
    """As a socket of gevent: recv waits where the socket is a blocking one, whatever its flags."""

    def recv(self, size: int, flags: int = 0) -> bytes:
        return super().recv(size, flags & ~socket.MSG_DONTWAIT)


def test_looking_for_the_end_never_waits_even_on_a_socket_that_ignores_flags() -> None:
    a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection = Connection(Channel(PatchedSocket(fileno=a.detach())), "here")
    waker = threading.Timer(5.0, b.close)  # so that a wait ends, and is seen
    waker.start()
    assert not connection.is_over()
    assert not connection.has_word()
    assert waker.is_alive(), "it waited"
    b.close()
    waker.cancel()
    assert connection.is_over()
    connection.channel.close()


def test_a_question_and_its_reply() -> None:
    ours, theirs = pair()
    connection = Connection(ours, "here")
    theirs.send(DrainState(draining=True, answered=False, rows=3))
    assert connection.ask(Drain(True), DrainState).rows == 3
    ours.close()
    theirs.close()


@pytest.mark.parametrize(
    ("names", "end"),
    [
        ((), "is the server running?"),
        (("batchpool-9.sock.lock", "other.sock", "batchpool-x.sock"), "is the server running?"),
        (
            ("batchpool-9001.sock", "batchpool.sock", "batchpool-9001.sock.tasks"),
            "running? Or on another port? There are sockets of 8000, 9001",
        ),
        (
            tuple(f"batchpool-{port}.sock" for port in range(9007, 9000, -1)),
            "There are sockets of 9001, 9002, 9003, 9004, 9005, ...",
        ),
    ],
)
def test_a_socket_that_is_not_there_is_told_with_those_that_are(
    tmp_path: Path, names: tuple[str, ...], end: str
) -> None:
    for name in names:
        (tmp_path / name).touch()
    path = str(tmp_path / "batchpool-1.sock")
    text = cannot_connect(path, FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)))
    assert text.startswith(f"no pool listens at {path}: there is no such socket; is the server ")
    assert text.endswith(end)


def test_a_user_is_told_of_the_socket_of_a_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, own = tmp_path / "service", tmp_path / "own"
    for folder in (service, own):
        folder.mkdir()
    monkeypatch.setattr(connection_module, "_SERVICE_FOLDER", str(service))
    (service / "batchpool.sock").touch()
    absent = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    text = cannot_connect(str(own / "batchpool.sock"), absent)
    assert text.endswith(f" {service}/batchpool.sock: --socket, or bp.Client(PATH), names it")
    assert "service?" not in cannot_connect(str(own / "batchpool-9.sock"), absent)


def test_a_pool_without_tasks_is_told_from_no_pool(tmp_path: Path) -> None:
    path = tmp_path / "batchpool.sock"
    with pytest.raises(PoolStopped, match=rf"^no pool listens at {path}: there is no such socket"):
        TaskQuestions(str(path))
    path.touch()
    with pytest.raises(PoolStopped, match=r"^no tasks are kept at .* with tasks = true in"):
        TaskQuestions(str(path))
