"""The control connection of a client: questions, replies, its end, and why it cannot be opened."""

from __future__ import annotations

import grp
import os
import pwd
import socket
import stat
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from batchpool.control.channel import Channel, Closed, close_all
from batchpool.control.edges import TO_CLIENT, TO_FRONTEND, FromClient, ToClient, ToFrontend, tag_of
from batchpool.control.messages import (
    Refused,
)
from batchpool.core.config.paths import port_of_socket
from batchpool.core.errors import (
    InternalError,
    InvalidRequest,
    NotFound,
    NotReady,
    Overloaded,
    PoolError,
    PoolStopped,
)
from batchpool.shm.doorbell import Waiter

Reply = TypeVar("Reply")

_PORTS_SHOWN = 5  # in a message
_SERVICE_FOLDER = "/run/batchpool"  # of root's pools and of the systemd unit

_REFUSALS: dict[str, type[PoolError]] = {
    kind.code: kind for kind in (InvalidRequest, NotFound, NotReady, Overloaded, InternalError)
}


class Connection:
    """One connection to a pool's control socket. where: its path, which error messages have; "" for
    a process of the pool, whose callers cannot see the path."""

    def __init__(self, channel: Channel, where: str) -> None:
        self.where = where
        self.channel = channel
        # By the socket and not by each call: a socket of gevent waits in spite of MSG_DONTWAIT.
        channel.sock.setblocking(False)

    @property
    def pool_name(self) -> str:
        """The pool in error messages."""
        return f"the pool at {self.where}" if self.where else "the pool"

    def is_over(self) -> bool:
        """True if the pool has closed the connection; never waits."""
        return self._first_byte() == b""

    def has_word(self) -> bool:
        """True if there is a message to read; never waits."""
        return bool(self._first_byte())

    def _first_byte(self) -> bytes | None:
        """The first byte to read; None if there is none yet, b"" at the end."""
        try:
            return self.channel.sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return None
        except OSError:
            return b""

    def stopped(self) -> PoolStopped:
        """The error of whatever comes when the pool has gone."""
        return PoolStopped(f"{self.pool_name} has stopped")

    def hear(self) -> tuple[ToFrontend, list[int]]:
        """The next message that the pool sends without a question, and its descriptors, which are
        the caller's. Only front ends get such messages. Call when there is something to read."""
        return self.channel.receive(TO_FRONTEND)

    def ask(self, question: FromClient, reply: type[Reply], timeout_s: float = 10.0) -> Reply:
        """Send one question over the control socket and return its reply, which is of this type.

        A refusal is raised as its PoolError; NotReady without a reply in time, PoolStopped when the
        pool has gone.
        """
        found, fds = self.ask_for_fds(question, reply, timeout_s)
        close_all(fds)
        return found

    def ask_for_fds(
        self,
        question: FromClient,
        reply: type[Reply],
        timeout_s: float = 10.0,
        sent_fds: Sequence[int] = (),
    ) -> tuple[Reply, list[int]]:
        """`ask` for a reply with descriptors, which are the caller's. sent_fds: of the question."""
        found, fds = self._exchange(question, sent_fds, timeout_s)
        if isinstance(found, reply):
            return found, fds
        close_all(fds)
        if isinstance(found, Refused):
            raise _REFUSALS.get(found.code, InternalError)(found.error)
        self._leave()
        raise InternalError(
            f"{self.pool_name} replied to {tag_of(type(question))!r} with {tag_of(type(found))!r}"
        )

    def _exchange(
        self, question: FromClient, fds: Sequence[int], timeout_s: float
    ) -> tuple[ToClient, list[int]]:
        waiter = Waiter(self.channel.fileno())
        try:
            with suppress(Closed):  # the pool may have said why before it closed the connection
                self.channel.send(question, fds)
            if not waiter.wait_ms(timeout_s * 1000):
                # Its reply may still come, and would be taken for the next question's.
                self._leave()
                raise NotReady(f"{self.pool_name} did not answer within {timeout_s:g} s")
            return self._take_reply()
        except Closed as exc:
            raise self.stopped() from exc
        except BlockingIOError as exc:
            raise NotReady(f"{self.pool_name} cannot be asked: {exc.strerror}") from exc
        except ValueError as exc:
            raise InternalError(f"the answer of {self.pool_name}: {exc}") from exc

    def _take_reply(self) -> tuple[ToClient, list[int]]:
        try:
            return self.channel.receive(TO_CLIENT)
        except (BlockingIOError, ValueError):
            self._leave()
            raise

    def _leave(self) -> None:
        """Shut the connection down, because the pool counts on something that could not be taken:
        the next call connects anew."""
        with suppress(OSError):
            self.channel.sock.shutdown(socket.SHUT_RDWR)


def cannot_connect(path: str, exc: OSError) -> str:
    if isinstance(exc, FileNotFoundError):
        nobody = f"no pool listens at {path}: there is no such socket; is the server running?"
        return nobody + (_of_service(path) or _other_ports(path))
    if isinstance(exc, ConnectionRefusedError):
        if not _is_socket(path):
            return (
                f"{path} is no socket: the path of a pool's control socket was expected, as"
                " `batchpool status` shows it"
            )
        return f"no pool listens at {path}: the socket is left over from one that has stopped"
    if isinstance(exc, PermissionError):
        return f"no permission to connect to the pool at {path}: {_permitted_users(path)}"
    return f"cannot connect to the pool at {path}: {exc.strerror}"


def _of_service(path: str) -> str:
    """The end of a message about a user's own socket that is not there: that of a service of the
    machine, which users reach by its path; "" for none."""
    found = f"{_SERVICE_FOLDER}/{os.path.basename(path)}"
    if found == path or not os.path.exists(found):
        return ""
    return f" Or as a service? There is {found}: --socket, or bp.Client(PATH), names it"


def _other_ports(path: str) -> str:
    """The end of a message about a socket that is not there: the ports whose sockets lie beside it;
    "" for none."""
    with suppress(OSError):
        found = map(port_of_socket, os.listdir(os.path.dirname(path) or "."))
        ports = sorted(port for port in found if port is not None)
        if ports:
            shown = [*map(str, ports[:_PORTS_SHOWN]), *(["..."] if ports[_PORTS_SHOWN:] else [])]
            return f" Or on another port? There are sockets of {', '.join(shown)}"
    return ""


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode)
    except OSError:
        return True  # nothing better is known


def _permitted_users(path: str) -> str:
    """The group or owner with permission on the socket; the command to join the group."""
    try:
        found = os.stat(path)
    except OSError as exc:
        return f"its directory cannot be searched ({exc.strerror})"
    me = _name_of(pwd.getpwuid, os.geteuid())
    if found.st_mode & stat.S_IWGRP:
        group = _name_of(grp.getgrgid, found.st_gid)
        return (
            f"only members of its group {group} may; an administrator adds you with"
            f" `usermod -aG {group} {me}`, which counts from your next login on"
        )
    owner = _name_of(pwd.getpwuid, found.st_uid)
    return f"only its owner {owner} may, and you are {me}"


def _name_of(entry: Callable[[int], Sequence[Any]], number: int) -> str:
    """The name of a user or group; the number where it has none."""
    try:
        return str(entry(number)[0])
    except KeyError:
        return str(number)
