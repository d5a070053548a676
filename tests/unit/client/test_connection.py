"""The control connection: questions and replies keep their order, whatever comes late."""

from __future__ import annotations

import socket
import threading

import pytest

from batchpool.client.connection import Connection
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
