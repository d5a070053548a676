"""The places of the control socket: quotas for connections and attached clients, and refusals.

Users are numbers (uids). Root and the user whom the pool runs as may control the pool anyway: they
have no quota, and some places are kept for them. Everybody else has a quota, so that the clients of
one user leave places for those of another. Nothing here reads a clock or makes a system call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

CONNECTIONS_MOST = 64  # that have not attached, those of operators too
CONNECTIONS_KEPT = 16  # of these, for root and the pool's user
CONNECTIONS_PER_USER = 16
FIRST_MESSAGE_NS = 5_000_000_000  # for the first message of a connection
NEXT_MESSAGE_NS = 60_000_000_000  # for each other one of a connection that has not attached
_KEPT_SHARE = 8  # one of so many places of max_clients is kept


@dataclass(frozen=True)
class ClientPlaces:
    """The places for clients that are attached. own_uid: whom the pool runs as."""

    own_uid: int
    max_clients: int

    @property
    def kept(self) -> int:
        """Places that only root and the pool's user get."""
        return self.max_clients // _KEPT_SHARE

    @property
    def quota(self) -> int:
        """The most clients that one other user may have attached: three quarters."""
        return max(1, self.max_clients * 3 // 4)

    def may_operate(self, uid: int) -> bool:
        """True for root and the pool's user."""
        return uid in (0, self.own_uid)

    def why_not_connect(self, uid: int, unattached: Sequence[int]) -> str:
        """Why a user gets no further connection, "" if he does. unattached: the users of all
        connections that have not attached."""
        if len(unattached) >= CONNECTIONS_MOST:
            return (
                f"{len(unattached)} connections are open that have not attached; the pool takes no"
                " more of them"
            )
        if self.may_operate(uid):
            return ""
        if unattached.count(uid) >= CONNECTIONS_PER_USER:
            return (
                f"{unattached.count(uid)} connections of uid {uid} are open that have not attached,"
                f" and a user may have {CONNECTIONS_PER_USER}"
            )
        if len(unattached) >= CONNECTIONS_MOST - CONNECTIONS_KEPT:
            return (
                f"{len(unattached)} connections are open that have not attached; the last"
                f" {CONNECTIONS_KEPT} of {CONNECTIONS_MOST} are kept for root and the pool's user"
            )
        return ""

    def why_not_attach(self, uid: int, attached: Sequence[int]) -> str:
        """Why a client of this user gets no place, "" if it does. attached: the users of all local
        clients that are attached."""
        if len(attached) >= self.max_clients:
            return f"{len(attached)} local clients are attached, max_clients = {self.max_clients}"
        if self.may_operate(uid):
            return ""
        own = attached.count(uid)
        if own >= self.quota:
            return (
                f"{own} local clients of uid {uid} are attached, and one user may have {self.quota}"
                f" of max_clients = {self.max_clients}"
            )
        if len(attached) >= self.max_clients - self.kept:
            return (
                f"{len(attached)} local clients are attached; the last {self.kept} of max_clients"
                f" = {self.max_clients} are kept for root and the pool's user"
            )
        return ""


def overdue_at_ns(connected_ns: int, heard_ns: int) -> int:
    """When a connection that has not attached has been silent for too long. connected_ns: the time
    it was made. heard_ns: the time of its last message, 0 before the first."""
    return heard_ns + NEXT_MESSAGE_NS if heard_ns else connected_ns + FIRST_MESSAGE_NS
