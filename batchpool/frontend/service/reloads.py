"""Reloads of the pool that HTTP callers ask for.

A reload reads the configuration file when it begins, so a caller needs one that begins after its
call. Callers that come while a reload is under way share the next one: however many there are, this
front end has at most two requests at the supervisor.
"""

from __future__ import annotations

import asyncio

from batchpool.client.loop import ClientLoop
from batchpool.control.channel import Closed
from batchpool.control.messages import Refused, Reload, ReloadReply
from batchpool.core.errors import InternalError, PoolStopped
from batchpool.frontend.service.supervisor_questions import ask, connected


class Reloads:
    """Asks the supervisor for reloads."""

    def __init__(self, client_loop: ClientLoop) -> None:
        self._client_loop = client_loop
        self._under_way: asyncio.Task[ReloadReply] | None = None
        self._next: asyncio.Task[ReloadReply] | None = None

    async def reload(self) -> ReloadReply:
        """The outcome of a reload that begins after this call; this front end knows its models.

        A caller that is cancelled ends no reload. PoolStopped if the supervisor is gone,
        InternalError for a reload that it refuses.
        """
        if self._next is None:
            self._next = asyncio.create_task(self._after(self._under_way))
            self._next.add_done_callback(_retrieve)
        return await asyncio.shield(self._next)

    async def _after(self, earlier: asyncio.Task[ReloadReply] | None) -> ReloadReply:
        if earlier is not None:
            await asyncio.wait([earlier])
        self._under_way, self._next = self._next, None
        reply = await self._ask()
        session = self._client_loop.session
        if session.state_page.edition.get() != session.edition:
            self._client_loop.listen()  # the models were sent before the reply
        return reply

    async def _ask(self) -> ReloadReply:
        path = self._client_loop.session.server["socket"]
        try:
            channel = connected(path)
            try:
                reply = await ask(channel, Reload(wait=True))
            finally:
                channel.close()
        except (OSError, Closed, ValueError) as exc:
            raise PoolStopped(f"no pool answers at {path}: {exc}") from exc
        if isinstance(reply, ReloadReply):
            return reply
        text = reply.error if isinstance(reply, Refused) else "another question was answered"
        raise InternalError(f"the supervisor does not reload: {text}")


def _retrieve(task: asyncio.Task[ReloadReply]) -> None:
    """Callers may all have been cancelled; nobody else looks at the error."""
    if not task.cancelled():
        task.exception()
