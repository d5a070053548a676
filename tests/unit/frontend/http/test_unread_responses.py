"""Long responses that nobody reads: how much of them is held has a bound, and harms no other."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

import batchpool as bp
from batchpool.core.errors import Overloaded
from batchpool.core.flows import named_flow
from batchpool.frontend.http.memory_budget import MemoryBudget, MemoryReservation
from tests.unit.frontend.frontend_double import Site, calling, edge, request, serving
from tests.unit.frontend.http.test_waits import deaf_socket
from tests.unit.frontend.loops import on_loop, until

MIB = 1 << 20
RAW = {"Inference-Header-Content-Length": "0"}
INFER = "/v2/models/large/infer"


class Large(bp.Model):
    """An answer of 6 MiB to eight bytes."""

    framework = "numpy"
    inputs = [bp.Tensor("n", "int64", ())]
    outputs = [bp.Tensor("y", "uint8", (6 << 20,))]

    def infer(self, batch: bp.Batch) -> Mapping[str, Any]:
        return {"y": np.zeros((len(batch["n"]), 6 << 20), np.uint8)}


def test_one_caller_leaves_something_to_the_others() -> None:
    memory = MemoryBudget(800, body_bytes=100)  # of which 600 may be unread
    for unread in range(0, 480, 40):
        memory.check_response(1, 40)
        MemoryReservation(memory, 1).count(40)
        assert memory.held_bytes == unread + 40
    for flow in (1, named_flow(1, 7)):  # under whatever name
        with pytest.raises(Overloaded, match="this caller's requests and responses"):
            memory.check_response(flow, 40)
    memory.check_response(2, 100)
    MemoryReservation(memory, 2).count(100)
    with pytest.raises(Overloaded, match="all of the memory"):
        memory.check_response(3, 40)
    MemoryReservation(memory, 3).grow_to(100)  # a body still fits
    memory.check()


def test_a_response_larger_than_all_that_may_be_unread_goes_where_little_is_held() -> None:
    memory = MemoryBudget(800)
    memory.check_response(1, 5000)
    other = MemoryReservation(memory, 2)
    other.grow_to(100)
    memory.check_response(1, 5000)
    other.grow_to(101)
    with pytest.raises(Overloaded, match="all of the memory"):
        memory.check_response(1, 5000)


async def status_of(deaf: socket.socket) -> bytes:
    """The status of the response that has come, of which no more is taken."""
    loop = asyncio.get_running_loop()
    return (await loop.sock_recv(deaf, 12)).partition(b" ")[2]


async def unread(site: Site, deaf: socket.socket, sent: bytes) -> bytes:
    """Ask, and leave the response unread but for its status."""
    deaf.setblocking(False)
    await asyncio.get_running_loop().sock_sendall(deaf, sent)
    return await status_of(deaf)


@pytest.mark.parametrize("fast", [True, False], ids=["fast", "asgi"])
@on_loop
async def test_a_caller_that_reads_nothing_is_refused_before_others_are(fast: bool) -> None:
    sent = request(INFER, bytes(8), headers=RAW)
    server = {"max_body_mib": 6, "max_bodies_mib": 64}
    async with (
        edge(Large, slots=4, server=server) as it,
        serving(it, fast=fast) as site,
        calling(site, local_addr=("127.0.0.2", 0)) as other,
    ):
        with ExitStack() as stack:
            found = []
            while b"503" not in found:
                deaf = stack.enter_context(deaf_socket(site))
                found.append(await unread(site, deaf, sent))
                assert len(found) < 40
                # Nobody else notices, however much is held of the one that reads nothing.
                await other.send(sent)
                assert (await other.answer()).status == 200
            assert set(found[:-1]) == {b"200"}
            assert 30 * MIB < it.view.memory.held_bytes <= 48 * MIB
        await until(lambda: it.view.memory.held_bytes == 0, "nothing is held of who has gone")
