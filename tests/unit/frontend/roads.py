"""Equal bytes over both HTTP paths: the answers byte for byte, and the path of each."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from batchpool.frontend.fast.protocol import FastProtocol
from batchpool.frontend.fast.request import FastRequest
from batchpool.model import Model
from tests.unit.frontend.frontend_double import Caller, Edge, Site, calling, edge, serving
from tests.unit.frontend.loops import until

_DATE = re.compile(rb"\r\ndate: [^\r]+")
_MADE = re.compile(rb"(\r\nx-request-id: )[0-9a-f]{16}(?=\r)")
_LENGTH = re.compile(rb"\r\ncontent-length: (\d+)\r\n")


@dataclass
class Roads:
    """Answers of one server without dates and made ids; how many the fast path took, and
    how many of them by a head that it knew."""

    answers: list[bytes] = field(default_factory=list)
    fast: int = 0
    known: int = 0


Scenario = Callable[["Visit"], Awaitable[None]]


@dataclass
class Visit:
    """One connection to one site, and the notes taken of it."""

    of: Edge
    site: Site
    caller: Caller
    found: Roads

    async def send(self, raw: bytes) -> None:
        await self.caller.send(raw)

    async def take(self, *, has_body: bool = True) -> bytes:
        """The next answer, noted without its date."""
        answer = await take(self.caller, has_body=has_body)
        self.found.answers.append(answer)
        return answer

    async def take_end(self) -> None:
        """Whatever else comes until the server ends the connection."""
        self.found.answers.append(_constant(await self.caller.ended()) + b"<end>")

    def feed(self, pieces: Iterable[bytes]) -> None:
        """Hand pieces to the server as so many reads."""
        (connection,) = self.site.server.server_state.connections
        for piece in pieces:
            connection.data_received(piece)


async def take(caller: Caller, *, has_body: bool = True) -> bytes:
    head = await caller.reader.readuntil(b"\r\n\r\n")
    length = _LENGTH.search(head)
    size = int(length[1]) if has_body and length else 0
    return _constant(head) + await caller.reader.readexactly(size)


def _constant(head: bytes) -> bytes:
    """Without what differs from answer to answer: the date, and a request id that was made."""
    return _MADE.sub(rb"\1made", _DATE.sub(b"", head))


async def over(fast: bool, scenario: Scenario, *models: type[Model], **facts: Any) -> Roads:
    """Play a scenario on a fresh front end with or without its fast road."""
    found = Roads()
    async with (
        edge(*models, **facts) as it,
        serving(it, fast=fast) as site,
        calling(site) as caller,
    ):
        await _count_fast(site, found)
        await scenario(Visit(it, site, caller, found))
    return found


async def _count_fast(site: Site, found: Roads) -> None:
    """Count what the fast road takes."""
    await until(lambda: site.connections == 1, "the connection is accepted")
    (connection,) = site.server.server_state.connections
    if not isinstance(connection, FastProtocol):
        return
    receive, end_request, lost = (
        connection._receive, connection.end_request, connection.connection_lost,
    )  # fmt: skip
    parsed: list[object] = []

    def count_known(request: object) -> None:
        if request not in parsed:
            found.fast += 1
            found.known += 1

    def counted(request: FastRequest) -> None:
        found.fast += 1
        parsed.append(request)
        receive(request)

    def counted_end(request: FastRequest) -> None:
        count_known(request)
        end_request(request)

    def counted_lost(exc: Exception | None) -> None:
        request: object = connection.cycle
        if isinstance(request, FastRequest) and request.is_waiting():
            count_known(request)
        lost(exc)

    connection._receive = counted  # type: ignore[method-assign]
    connection.end_request = counted_end  # type: ignore[method-assign]
    connection.connection_lost = counted_lost  # type: ignore[method-assign]


async def same(scenario: Scenario, *models: type[Model], **facts: Any) -> Roads:
    """Play it over both roads; they must not differ. Returns what the fast one did."""
    slow = await over(False, scenario, *models, **facts)
    fast = await over(True, scenario, *models, **facts)
    assert fast.answers == slow.answers
    return fast
