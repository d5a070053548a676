"""Accepts the connections of a front end, so that a crowd of new ones makes nobody wait.

uvloop would accept one connection in a turn of the loop, in the order in which they came, and make
a protocol of each at once, which takes hundreds of microseconds. A caller who connects anew would
wait for as many turns as there are connections before his, whether these say anything or not.

    accepted   whatever the kernel has, up to `_TURN_ACCEPTS` in a turn: 7 us each
    silent     until its first bytes come it is a descriptor in an epoll of its own
    waiting    then it waits for its turn by its origin (accept_order.py)
    connected  `_TURN_CONNECTIONS` in a turn get a protocol and are read from

The kernel reports what is ready in the order in which it became so. So listeners, the silent and
those that wait have an epoll each: neither accepting nor first bytes come behind a crowd that
leaves. More of each is taken in a turn than a crowd can bring in it.

Where nobody is there but callers of one origin, a turn connects `_ALONE_TURN_CONNECTIONS` of them:
its other connections keep the loop busy meanwhile, so that each turn is long, and the last of
hundreds that come together would wait for the requests of all before it again and again.

A connection whose caller has left without a request is closed without a protocol. A silent one ends
after `silent_s`, as an idle one does after its own time. Where `_MOST_WAITING` wait, half of
those of the origin that has most of them are closed; if it has but one, others stay with the
kernel.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import socket
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from batchpool.frontend.http.accept_order import AcceptOrder
from batchpool.frontend.http.caller import network_of
from batchpool.frontend.http.proxies import UNIX, peer_address
from batchpool.shm.resource_errors import is_shortage

_TURN_ACCEPTS = 64
_TURN_SPEAKERS = 256  # connections whose first bytes are seen in a turn
_TURN_CONNECTIONS = 2
_ALONE_TURN_CONNECTIONS = 32  # take 1.5 ms, for which a caller of another origin may have to wait
_TURN_LEFT = _TURN_ACCEPTS  # closed in a turn, since their callers have left
_MOST_WAITING = 8192
_LAST_LOOKS = 256  # for what has come by the end; more than all that the kernel may have
_FIRST_BYTES = select.EPOLLIN | select.EPOLLRDHUP
_LOOK_BYTES = 1 << 16
_SHORT_S = 0.1  # without accepting while descriptors or memory are short
_ESTABLISHED = 1  # TCP_ESTABLISHED of the kernel, the first byte of TCP_INFO


class Accepted(NamedTuple):
    """A connection without a protocol. listener: that it came to. since_s: the loop's time."""

    sock: socket.socket
    listener: socket.socket
    address: str
    since_s: float

    def has_left(self) -> bool:
        """True if the caller sends nothing more, and has not sent the end of a line, without which
        there is nothing to answer."""
        sock = self.sock
        try:
            if self.address != UNIX:  # to ask the socket for its family takes longer
                (state,) = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)
                if state == _ESTABLISHED:
                    return False
            found = sock.recv(_LOOK_BYTES, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except OSError:  # it was reset
            return True
        return not found or (self.address != UNIX and b"\n" not in found)


# methods: a connection's way from the kernel to its protocol, of which each step can be the last.
class Acceptor:
    """The listening sockets of one front end. `connect` gives a connection its protocol.

    silent_s: the time after which a connection that has sent nothing ends, by its listener.
    is_alone: whether nobody has had work of late but the callers of an origin.
    """

    def __init__(
        self,
        listeners: list[socket.socket],
        connect: Callable[[Accepted], None],
        silent_s: Callable[[socket.socket], float],
        is_alone: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._connect = connect
        self._silent_s = silent_s
        self._is_alone = is_alone
        self._listeners = {listener.fileno(): listener for listener in listeners}
        self._silent: dict[int, Accepted] = {}  # by descriptor, the oldest first
        self._order: AcceptOrder[Accepted] = AcceptOrder()  # with those closed while they waited
        self._waiting: dict[int, Accepted] = {}  # by descriptor
        self._watched: set[int] = set()  # those in the epoll of connections that wait
        self._spoke: list[Accepted] = []  # whose first bytes came in this turn
        self._turn_is_due = False  # `_next_turn` will be called
        self._resuming: asyncio.TimerHandle | None = None
        self._spare = _spare_descriptor()
        self._silent_epoll, self._waiting_epoll = select.epoll(), select.epoll()
        self._epoll = select.epoll()  # of listeners and of the other two
        for listener in listeners:
            listener.setblocking(False)
            self._epoll.register(listener, select.EPOLLIN)
        self._epoll.register(self._silent_epoll, select.EPOLLIN)
        self._epoll.register(self._waiting_epoll, select.EPOLLIN)
        self._loop.add_reader(self._epoll.fileno(), self._on_events)

    def is_serving(self) -> bool:
        """True until it is closed."""
        return not self._epoll.closed

    @property
    def size(self) -> int:
        """The number of connections without a protocol."""
        return len(self._silent) + len(self._waiting)

    def silent_by_address(self) -> Counter[str]:
        """The number of silent connections of each address."""
        return Counter(accepted.address for accepted in self._silent.values())

    def close_silent(self, address: str, most: int) -> int:
        """Close the oldest silent connections of an address; returns their number."""
        of_address = [found for found in self._silent.values() if found.address == address][:most]
        for accepted in of_address:
            self._drop(accepted)
        return len(of_address)

    def sweep(self, now_s: float) -> None:
        """Close connections that have been silent for too long. now_s: the loop's time."""
        least_s = min(map(self._silent_s, self._listeners.values()), default=0.0)
        overdue = []
        for accepted in self._silent.values():
            silent_s = now_s - accepted.since_s
            if silent_s <= least_s:
                break
            if silent_s > self._silent_s(accepted.listener):
                overdue.append(accepted)
        for accepted in overdue:
            self._drop(accepted)

    def close(self) -> None:
        """Listen no more. Connections that have sent something are connected; others end."""
        if self._epoll.closed:
            return
        for _ in range(_LAST_LOOKS):
            if not (self._accept_all() + self._hear_silent()):
                break
        while (accepted := self._order.take(self._loop.time())) is not None:
            self._connect_unless_left(accepted)
        for accepted in list(self._silent.values()):
            self._drop(accepted)
        if self._resuming is not None:
            self._resuming.cancel()
        self._loop.remove_reader(self._epoll.fileno())
        for epoll in (self._epoll, self._silent_epoll, self._waiting_epoll):
            epoll.close()
        for listener in self._listeners.values():
            listener.close()
        os.close(self._spare)

    async def wait_closed(self) -> None:
        """uvicorn asks each server that it closes to be waited for."""

    # -- events ---------------------------------------------------------------------------

    def _on_events(self) -> None:
        self._accept_all()
        # The first bytes of a connection have mostly come by the time that it is accepted.
        self._hear_silent()
        self._close_left()
        if len(self._order) >= _MOST_WAITING:
            self._close_crowd()
        if not self._turn_is_due:
            self._take_turn()
        for accepted in self._spoke:
            fd = accepted.sock.fileno()
            if fd in self._waiting:  # it has no protocol yet
                self._watched.add(fd)
                self._waiting_epoll.register(fd, select.EPOLLRDHUP | select.EPOLLONESHOT)
        self._spoke.clear()

    def _accept_all(self) -> int:
        """Accept what the kernel has; returns the number of connections."""
        listeners = [self._listeners.get(fd) for fd, _ in self._epoll.poll(0)]
        return sum(self._accept(listener) for listener in listeners if listener is not None)

    def _accept(self, listener: socket.socket) -> int:
        now_s, is_unix = self._loop.time(), listener.family == socket.AF_UNIX
        count = max(0, min(_TURN_ACCEPTS, _MOST_WAITING - len(self._order)))
        for number in range(count):
            try:
                sock, peer = listener.accept()
            except BlockingIOError:
                return number
            except OSError as exc:
                if is_shortage(exc):
                    self._turn_away(listener)
                    return number
                continue  # this one has ended while it waited
            address = UNIX if is_unix else peer_address(peer[0])
            self._await_bytes(Accepted(sock, listener, address, now_s))
        return count

    def _await_bytes(self, accepted: Accepted) -> None:
        """Let a connection be silent until its first bytes come."""
        fd = accepted.sock.fileno()
        self._silent[fd] = accepted
        self._silent_epoll.register(fd, _FIRST_BYTES)

    def _hear_silent(self) -> int:
        """Let connections wait that have sent something, and close those that have left; returns
        the number of both."""
        if not self._silent:
            return 0
        events = self._silent_epoll.poll(0, _TURN_SPEAKERS)
        for fd, event in events:
            accepted = self._silent.pop(fd)
            if event != select.EPOLLIN and accepted.has_left():
                accepted.sock.close()
                continue
            self._silent_epoll.unregister(fd)
            self._spoke.append(accepted)
            self._await_turn(accepted)
        return len(events)

    def _close_left(self) -> None:
        """Close connections that have left while they waited."""
        if not self._watched:
            return
        for fd, _ in self._waiting_epoll.poll(0, _TURN_LEFT):
            accepted = self._waiting[fd]
            if accepted.has_left():
                self._end_wait(fd)
                accepted.sock.close()

    def _close_crowd(self) -> None:
        """Close those that came last of the origin with most waiting connections.

        To leave connections with the kernel instead would make others wait behind the crowd, since
        the kernel gives them in the order in which they came.
        """
        for accepted in self._order.give_up():
            fd = accepted.sock.fileno()
            if fd >= 0:  # it was not closed while it waited
                self._end_wait(fd)
                accepted.sock.close()

    def _turn_away(self, listener: socket.socket) -> None:
        """Close the next connection, and accept no other one for some time.

        The descriptor that it takes is the spare one. Without it callers would wait for an answer
        that does not come, and the kernel would report their connections in each turn.
        """
        os.close(self._spare)
        with contextlib.suppress(OSError):  # another thread has taken the descriptor
            listener.accept()[0].close()
        self._spare = _spare_descriptor()
        for fd in self._listeners:
            self._epoll.modify(fd, 0)
        self._resuming = self._loop.call_later(_SHORT_S, self._watch_listeners)

    def _watch_listeners(self) -> None:
        self._resuming = None
        for fd in self._listeners:
            self._epoll.modify(fd, select.EPOLLIN)

    def _drop(self, accepted: Accepted) -> None:
        del self._silent[accepted.sock.fileno()]
        accepted.sock.close()  # which takes it out of the epoll as well

    # -- turns ----------------------------------------------------------------------------

    def _await_turn(self, accepted: Accepted) -> None:
        self._waiting[accepted.sock.fileno()] = accepted
        self._order.add(network_of(accepted.address), accepted)

    def _end_wait(self, fd: int) -> None:
        del self._waiting[fd]
        if fd in self._watched:
            self._watched.remove(fd)
            self._waiting_epoll.unregister(fd)

    def _next_turn(self) -> None:
        self._turn_is_due = False
        self._take_turn()

    def _take_turn(self) -> None:
        """Connect the first few connections that wait, and close those whose callers have left."""
        connections = left = 0
        now_s = self._loop.time()
        lone = self._order.lone_origin()
        is_alone = lone is not None and self._is_alone(lone)
        most = _ALONE_TURN_CONNECTIONS if is_alone else _TURN_CONNECTIONS
        while connections < most and left < _TURN_LEFT:
            accepted = self._order.take(now_s)
            if accepted is None:
                return
            if self._connect_unless_left(accepted):
                connections += 1
            else:
                left += 1
        if self._order:
            self._turn_is_due = True
            self._loop.call_soon(self._next_turn)

    def _connect_unless_left(self, accepted: Accepted) -> bool:
        fd = accepted.sock.fileno()
        if fd < 0:  # it was closed while it waited
            return False
        self._end_wait(fd)
        if accepted.has_left():
            accepted.sock.close()
            return False
        self._connect(accepted)
        return True


def _spare_descriptor() -> int:
    return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
