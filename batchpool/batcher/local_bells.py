"""The bells of local clients, as the batcher hears and rings them.

Clients ring eventfds that nobody reads: an edge-triggered epoll reports each that was rung since
the last look. The cost of a wait does not rise with the number of clients.

A client whose rings bring no rows must not keep the batcher awake. Each ring takes one from the
client's credit and each row that was admitted adds two, since a row is submitted with one ring and
cancelled with another. Without credit its bell is left out of the wait for a tenth of a second, and
then gets credit for two rings. Its lanes are looked at in every step all the same, so that rows of
it wait a tenth of a second at the most.
"""

from __future__ import annotations

import os
import select
from dataclasses import dataclass, field

from batchpool.batcher.lane import AdmittedLane
from batchpool.shm.doorbell import Doorbell

_CREDIT_MOST = 256
_CREDIT_AGAIN = 2
_MUTE_NS = 100_000_000
_NEVER_NS = 2**63 - 1


@dataclass
class _LocalClient:
    """A client with its lanes. admitted: rows of all its lanes that its credit is for.
    muted_until_ns: 0 while its bell is waited for."""

    bell: Doorbell
    wake_fd: int
    lanes: dict[int, AdmittedLane] = field(default_factory=dict)
    credit: int = _CREDIT_MOST
    admitted: int = 0
    muted_until_ns: int = 0

    def earns(self) -> bool:
        """Raise the credit by what the rows since the last time are worth; True if any is left."""
        admitted = sum(lane.admitted for lane in self.lanes.values())
        credit = self.credit + 2 * (admitted - self.admitted)
        self.credit, self.admitted = min(credit, _CREDIT_MOST), admitted
        return self.credit > 0


class LocalBells:
    """The bells of all local clients that have lanes here.

    fd: readable when one has rung.
    """

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self.fd = self._epoll.fileno()
        self._clients: dict[int, _LocalClient] = {}
        self._by_fd: dict[int, _LocalClient] = {}
        self._client_of: dict[int, int] = {}  # by lane number
        self._next_look_ns = _NEVER_NS  # when a muted bell is waited for again

    def bell_of(self, client: int, bell_fd: int, wake_fd: int) -> Doorbell:
        """The bell to ring for a client, by its number. Takes over the descriptors: bell_fd is the
        eventfd that its epoll waits for, wake_fd what it rings."""
        known = self._clients.get(client)
        if known is not None:  # it has another lane, and these are the same bells
            os.close(bell_fd)
            os.close(wake_fd)
            return known.bell
        added = _LocalClient(Doorbell(bell_fd), wake_fd)
        self._clients[client] = self._by_fd[wake_fd] = added
        self._epoll.register(wake_fd, select.EPOLLIN | select.EPOLLET)
        return added.bell

    def add_lane(self, client: int, lane: AdmittedLane) -> None:
        """Count a lane for its client, after `bell_of`."""
        self._client_of[lane.number] = client
        self._clients[client].lanes[lane.number] = lane

    def remove_lane(self, number: int) -> None:
        """A lane is gone; with the last of its client go the bells. Ignores other lanes."""
        client = self._client_of.pop(number, None)
        if client is None:
            return
        owner = self._clients[client]
        owner.admitted -= owner.lanes.pop(number).admitted
        if not owner.lanes:
            del self._clients[client], self._by_fd[owner.wake_fd]
            if not owner.muted_until_ns:
                self._epoll.unregister(owner.wake_fd)
            os.close(owner.wake_fd)
            owner.bell.close()

    def hear(self, now_ns: int) -> None:
        """Take the rings so far; call it before the lanes are looked at."""
        for fd, _ in self._epoll.poll(0):
            client = self._by_fd[fd]
            client.credit -= 1
            if client.credit <= 0 and not client.earns():
                self._epoll.unregister(fd)
                client.muted_until_ns = now_ns + _MUTE_NS
                self._next_look_ns = min(self._next_look_ns, client.muted_until_ns)

    def wake_at_ns(self, now_ns: int) -> int:
        """When to look again at the latest; waits for bells again whose time has come."""
        if now_ns < self._next_look_ns:
            return self._next_look_ns
        self._next_look_ns = _NEVER_NS
        for client in self._clients.values():
            if 0 < client.muted_until_ns <= now_ns:
                client.muted_until_ns, client.credit = 0, _CREDIT_AGAIN
                self._epoll.register(client.wake_fd, select.EPOLLIN | select.EPOLLET)
            elif client.muted_until_ns:
                self._next_look_ns = min(self._next_look_ns, client.muted_until_ns)
        return self._next_look_ns
