"""The committer of tasks: what shares a commit, and what has places in each."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from batchpool.tasks.committer import ENOUGH, MOST_TASKS, Committer
from batchpool.tasks.record import Again, Want
from batchpool.tasks.store import StoreFull
from tests.unit.tasks.desk import Desk


@pytest.mark.parametrize("many", ["cancel", "look"])
def test_every_kind_that_waits_has_places_in_the_next_commit(
    monkeypatch: pytest.MonkeyPatch, many: str
) -> None:
    """However many questions of another kind came before."""

    async def scene() -> None:
        desk = Desk()
        commits: dict[str, int] = {}

        def noted(kind: str) -> None:
            real = getattr(desk.store, kind)

            def answer(*given: Any) -> Any:
                commits.setdefault(kind, desk.store.commits)
                return real(*given)

            monkeypatch.setattr(desk.store, kind, answer)

        entries = {"look": "t_x", "collect": "t_x", "claim": Want("twice", 1, 1)}
        for kind in entries:
            noted(kind)
        asking = [desk.committer.ask(many, "t_y") for _ in range(2 * MOST_TASKS)]
        asking += [desk.committer.ask(kind, entry) for kind, entry in entries.items()]
        await asyncio.gather(*asking)
        assert commits == {"look": 1, "collect": 1, "claim": 1}
        assert desk.store.commits >= 3, "and a group has a most"
        await desk.committer.close()

    asyncio.run(scene())


def test_a_full_disk_takes_ever_smaller_groups_of_what_ends_and_is_claimed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a group that has no room the halves may have some, down to one, and down to no room."""

    async def scene() -> None:
        desk = Desk()
        large = "t_large"

        def cancel(ids: Sequence[str], now_ms: int) -> list[None]:
            if len(ids) > 2 or large in ids:
                raise StoreFull("no room")
            return [None] * len(ids)

        def claim(wants: Sequence[Want], now_ms: int) -> list[str]:
            if wants[0].tasks > 3:
                raise StoreFull("no room")
            return ["t"] * wants[0].tasks

        monkeypatch.setattr(desk.store, "cancel", cancel)
        monkeypatch.setattr(desk.store, "claim", claim)
        cancelled = await desk.committer.ask_each("cancel", [*"abcdefg", large])
        assert cancelled[:7] == [None] * 7
        assert isinstance(cancelled[7], StoreFull)
        claimed = await desk.committer.ask("claim", Want("twice", 15, 1))
        assert claimed.tasks == ["t"] * 3
        await desk.committer.close()

    asyncio.run(scene())


def test_a_question_that_the_store_cannot_answer_fails_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A damaged record, for one: ends, new tasks and other questions of its commit are kept."""

    async def scene() -> None:
        desk = Desk()
        kept = await desk.submit([1])
        real = desk.store.look

        def look(ids: Sequence[str], now_ms: int) -> Any:
            if "t_damaged" in ids:
                raise ValueError("no such state")
            return real(ids, now_ms)

        monkeypatch.setattr(desk.store, "look", look)
        asked: list[Any] = [desk.committer.ask("look", kept) for _ in range(3)]
        asked += [desk.committer.ask("look", "t_damaged"), desk.submit([2])]
        answers: list[Any] = await asyncio.gather(*asked, return_exceptions=True)
        *found, damaged, new = answers
        assert isinstance(damaged, ValueError)
        assert desk.state(new) == "queued"
        assert [task.form.id for task in found] == [kept] * 3
        await desk.committer.close()

    asyncio.run(scene())


def test_a_claim_tells_when_there_is_more() -> None:
    async def scene() -> None:
        desk = Desk()
        for value in range(3):
            await desk.submit([value])

        async def claim(tasks: int, size: int = 2**30) -> tuple[int, int | None]:
            found = await desk.committer.ask("claim", Want("twice", tasks, size))
            return len(found.tasks), found.due_ms

        assert await claim(1) == (1, 0)
        assert await claim(9, size=1) == (1, 0), "as many bytes as were wanted"
        found = await desk.committer.ask("claim", Want("twice", 9, 2**30))
        assert found.due_ms is None
        (task,) = found.tasks
        assert await claim(9) == (0, None)
        again = Again(task.id, task.claim, desk.now_ms + 5, True)
        await desk.committer.ask("retry", again)
        assert await claim(9) == (0, again.due_ms)
        await desk.committer.close()

    asyncio.run(scene())


def test_new_tasks_and_the_wants_of_their_commit_are_one_step() -> None:
    async def scene() -> None:
        desk = Desk()
        kept, found, none = await asyncio.gather(
            desk.submit([1]),
            desk.committer.ask("claim", Want("twice", 9, 2**30)),
            desk.committer.ask("claim", Want("other", 9, 2**30)),
        )
        assert desk.store.commits == 1
        assert [task.id for task in found.tasks] == [kept]
        assert (found.due_ms, list(none.tasks), none.due_ms) == (None, [], None)
        await desk.committer.close()

    asyncio.run(scene())


class Slow:
    """A clock by which each group takes an hour."""

    def __init__(self) -> None:
        self._now_s = 0.0

    def monotonic(self) -> float:
        self._now_s += 3600
        return self._now_s


@pytest.mark.parametrize("more", [ENOUGH - 1, 0])
def test_questions_that_come_while_the_store_rests_share_a_commit(
    monkeypatch: pytest.MonkeyPatch, more: int
) -> None:
    """The rest ends when enough of them wait, or when the process ends."""
    monkeypatch.setattr("batchpool.tasks.committer.time", Slow())

    async def scene() -> None:
        desk = Desk()
        committer = Committer(desk.store, lambda: 1, lambda seconds: None, rest_most_s=3600)
        await committer.ask("look", "t_x")
        await asyncio.sleep(0)
        first = asyncio.create_task(committer.ask("look", "t_x"))
        for _ in range(100):
            await asyncio.sleep(0)
        assert (desk.store.commits, first.done()) == (1, False)
        rest = [asyncio.create_task(committer.ask("look", "t_x")) for _ in range(more)]
        closing = None if more else asyncio.create_task(committer.close())
        async with asyncio.timeout(60):
            await asyncio.gather(first, *rest)
        assert desk.store.commits == 2
        await (closing or committer.close())

    asyncio.run(scene())


def test_after_a_rest_nobody_waits_for_company(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("batchpool.tasks.committer.time", Slow())

    async def scene() -> None:
        desk = Desk()
        committer = Committer(desk.store, lambda: 1, lambda seconds: None, rest_most_s=1e-9)
        async with asyncio.timeout(60):
            for _ in range(3):
                await committer.ask("look", "t_x")
        assert desk.store.commits == 3
        await committer.close()

    asyncio.run(scene())
