"""The places of uploads are shared among callers, whoever takes them first."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from batchpool.control.batch_messages import AppendToUpload, BeginUpload
from batchpool.core.errors import NotReady, Overloaded
from tests.unit.batches.desk import Desk


async def take_all(desk: Desk, callers: int) -> dict[str, list[str]]:
    """Uploads that each of these callers begins in turn until it gets no more; the ids."""
    begun: dict[str, list[str]] = {f"caller {n}": [] for n in range(callers)}
    for caller, ids in begun.items():
        while True:
            try:
                found: Any = await desk.ask(BeginUpload(desk.token(), "", caller))
            except Overloaded:
                break
            ids.append(found.id)
            desk.now_ms += 1
    return begun


def test_a_few_callers_cannot_take_all_places(tmp_path: Path) -> None:
    async def scene() -> None:
        desk = Desk(tmp_path)
        begun = await take_all(desk, 5)
        assert [len(ids) for ids in begun.values()] == [16, 16, 16, 8, 4]
        await desk.ask(BeginUpload(desk.token(), "", "another"))
        await desk.close()

    asyncio.run(scene())


def test_one_who_has_none_gets_the_place_that_stands_still_the_longest(tmp_path: Path) -> None:
    async def scene() -> None:
        desk = Desk(tmp_path)
        begun = await take_all(desk, 8)
        assert [len(ids) for ids in begun.values()] == [16, 16, 16, 8, 4, 2, 1, 1]
        first, second, *_ = begun["caller 0"]
        await desk.ask(AppendToUpload(first, 0, b"x"))
        await desk.ask(BeginUpload(desk.token(), "", "another"))
        await desk.ask(AppendToUpload(first, 1, b"x"))
        with pytest.raises(NotReady, match="another caller had the turn"):
            await desk.ask(AppendToUpload(second, 0, b"x"))
        assert desk.store.quotas.files == 64
        with pytest.raises(Overloaded, match=r"64 of at most 64 .* 1 of them by this caller"):
            await desk.ask(BeginUpload(desk.token(), "", "another"))
        await desk.close()

    asyncio.run(scene())


def test_of_callers_with_one_each_those_who_stand_still_give_way(tmp_path: Path) -> None:
    async def scene() -> None:
        desk = Desk(tmp_path)
        ids = []
        for n in range(64):
            found: Any = await desk.ask(BeginUpload(desk.token(), "", f"caller {n}"))
            ids.append(found.id)
        with pytest.raises(Overloaded):
            await desk.ask(BeginUpload(desk.token(), "", "another"))
        desk.now_ms += 5000
        await desk.ask(AppendToUpload(ids[0], 0, b"x"))
        await desk.ask(BeginUpload(desk.token(), "", "another"))
        await desk.ask(AppendToUpload(ids[0], 1, b"x"))
        with pytest.raises(NotReady):
            await desk.ask(AppendToUpload(min(ids[1:]), 0, b"x"))
        await desk.close()

    asyncio.run(scene())
