"""The supervisor's side of one attached client: a local program or an HTTP front end."""

from __future__ import annotations

import os
from dataclasses import dataclass

from batchpool.control.channel import Channel
from batchpool.control.peer import Peer
from batchpool.supervisor.resources.held_bells import HeldBells


@dataclass
class ClientConnection:
    """A control connection. `bells` is None until it has attached.

    number: of a local client, never used twice; 0 for a front end. frontend: the front end's place,
    or None for a local client; its channel is that of the child. pinned: GPUs are to read and write
    its lanes by themselves; those of front ends always.

    Times are of CLOCK_MONOTONIC. connected_ns: when it connected. heard_ns: when its last message
    came, 0 before the first. waits: for a reply that comes later. resumes_ns: until then it is not
    read, 0 while it is.
    """

    owner: str
    channel: Channel
    peer: Peer | None
    pidfd: int
    frontend: int | None = None
    bells: HeldBells | None = None
    pinned: bool = False
    number: int = 0
    connected_ns: int = 0
    heard_ns: int = 0
    waits: bool = False
    resumes_ns: int = 0

    @property
    def attached(self) -> bool:
        """True from `attach` on, until it is closed."""
        return self.bells is not None

    @property
    def uid(self) -> int:
        """The user of a local client; -1 for a front end."""
        return -1 if self.peer is None else self.peer.uid

    def close(self) -> None:
        if self.frontend is None:
            self.channel.close()
        if self.pidfd >= 0:
            os.close(self.pidfd)
        if self.bells is not None:
            self.bells.close()
        self.pidfd, self.bells = -1, None
