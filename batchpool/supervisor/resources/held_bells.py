"""The supervisor's descriptors of one client's bells, which its connection and its lanes share."""

from __future__ import annotations

import os

from batchpool.shm.client_bells import make_client_bells
from batchpool.shm.doorbell import Doorbell
from batchpool.shm.resource_errors import named


class HeldBells:
    """Kept until the last user has let go of them, so that every batcher is handed the same bells.

    to_client: rung by the batcher. from_client: rung by a local client; -1 for a front end, which
    rings the batcher's own bell. for_client: the end of `to_client` that the client hears; -1 once
    the client has it.
    """

    def __init__(self, to_client: int, from_client: int, for_client: int) -> None:
        self.to_client = to_client
        self.from_client = from_client
        self.for_client = for_client
        self._users = 1

    @classmethod
    def of_local_client(cls) -> HeldBells:
        """New bells, made here, of which a local client gets its ends. StartError without
        descriptors."""
        with named("the pool can take no more clients"):
            made = make_client_bells()
        return cls(made.rung_by_pool, made.rung_by_client, made.heard_by_client)

    @classmethod
    def of_frontend(cls) -> HeldBells:
        """An eventfd, which a front end and the batcher share. StartError without a descriptor."""
        with named("cannot attach a front end"):
            fd = Doorbell().fd
            try:
                return cls(fd, -1, os.dup(fd))
            except OSError:
                os.close(fd)
                raise

    def share(self) -> HeldBells:
        """These bells for one more user, which calls `close` too."""
        self._users += 1
        return self

    def handed_over(self) -> None:
        """The client has its end, which is closed here."""
        if self.for_client >= 0:
            os.close(self.for_client)
            self.for_client = -1

    def close(self) -> None:
        """One user lets go; the last one closes the descriptors."""
        self._users -= 1
        if self._users == 0:
            self.handed_over()
            os.close(self.to_client)
            if self.from_client >= 0:
                os.close(self.from_client)
