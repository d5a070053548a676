"""Asks the supervisor for the pool's status, over a connection that is open while the dashboard has
viewers."""

from __future__ import annotations

import asyncio
from typing import Any

from batchpool.control.channel import Channel, Closed
from batchpool.control.messages import GetStatus, Refused, StatusReply
from batchpool.core.errors import NotReady, PoolError, PoolStopped
from batchpool.frontend.service.supervisor_questions import ask, connected

PATIENCE_S = 2.0  # a supervisor that is well answers within milliseconds


class StatusClient:
    """A client of the supervisor. path: of the pool's unix socket."""

    def __init__(self, path: str, patience_s: float = PATIENCE_S) -> None:
        self._path = path
        self._patience_s = patience_s
        self._channel: Channel | None = None

    async def status(self) -> dict[str, Any]:
        """The pool's status. Raises PoolStopped without a supervisor, NotReady without a reply in
        time."""
        try:
            if self._channel is None:
                self._channel = connected(self._path)
            async with asyncio.timeout(self._patience_s):
                reply = await ask(self._channel, GetStatus())
        except TimeoutError:
            self.close()  # a late reply would be taken for the next one
            raise NotReady("the supervisor does not answer") from None
        except asyncio.CancelledError:
            self.close()
            raise
        except (OSError, Closed, ValueError) as exc:
            self.close()
            raise PoolStopped(f"no pool answers at {self._path}: {exc}") from exc
        match reply:
            case StatusReply():
                return reply.status
            case Refused():
                raise PoolError(f"the supervisor answered {reply.error!r}")
        raise PoolError("the supervisor answered another question")

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None
