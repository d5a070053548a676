"""The supervisor's side of one attached client: a local program or an HTTP front end."""

from __future__ import annotations

import os
from dataclasses import dataclass

from batchpool.control.channel import Channel
from batchpool.control.peer import Peer


@dataclass
class ClientConnection:
    """A control connection. `bell_fd` is -1 until it has attached.

    frontend: the front end's place, or None for a local client; its channel is that of the child.
    pinned: GPUs are to read and write its lanes by themselves; those of front ends always.
    """

    owner: str
    channel: Channel
    peer: Peer | None
    pidfd: int
    frontend: int | None = None
    bell_fd: int = -1
    pinned: bool = False

    def close(self) -> None:
        if self.frontend is None:
            self.channel.close()
        for fd in (self.pidfd, self.bell_fd):
            if fd >= 0:
                os.close(fd)
        self.pidfd = self.bell_fd = -1
