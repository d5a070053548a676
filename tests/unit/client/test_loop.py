"""The drive of lane clients from one loop: groups, bells, looks at the time, and the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from batchpool.client.loop import ClientLoop
from batchpool.client.pending_request import PendingRequest
from batchpool.control.messages import PlanChanged
from batchpool.core.errors import DeadlineExceeded, PoolError, PoolStopped
from batchpool.core.layout.states import LaneGate
from tests.unit.client.lane_clients import LATER, MS, NOW, rows_of
from tests.unit.client.scene import Scene, is_rung
from tests.unit.control.packets import receive_form
from tests.unit.inprocess.clock import Loop, run, turns

CHANGED = PlanChanged((), {}, 1, ())


class Listener:
    """Remembers how its requests ended. wanted: whether it takes what is finished."""

    def __init__(self, *, wanted: bool = True) -> None:
        self.ended: list[PendingRequest | PoolError] = []
        self._wanted = wanted

    def finished(self, pending: PendingRequest) -> bool:
        self.ended.append(pending)
        return self._wanted

    def failed(self, error: PoolError) -> None:
        self.ended.append(error)


class Driven:
    """A client loop, its words, and the submission of rows."""

    def __init__(self, scene: Scene, heard: Callable[[Any, list[int]], None] | None = None) -> None:
        self.scene = scene
        self.lost = 0
        self.loop = ClientLoop(scene.session, self._lost, heard)

    def _lost(self) -> None:
        self.lost += 1

    def submit(self, listener: Listener, n: int = 1, deadline_ns: int = LATER) -> PendingRequest:
        lane_client = self.scene.lane_client
        pending = lane_client.submit(rows_of(n), self.scene.clock(), deadline_ns, tag=listener)
        self.loop.publish(lane_client)
        return pending

    def admitted(self) -> int:
        """The number of rows that were published since the last look."""
        found: int = self.scene.pool.admit().shape[1]
        return found


@pytest.fixture
def scene(scene: Scene) -> Scene:
    scene.connect()
    return scene


def driving(scene: Scene, test: Callable[[Driven], Coroutine[Any, Any, None]]) -> None:
    """Run a test with a client loop, which is closed after it."""

    async def main() -> None:
        driven = Driven(scene)
        await test(driven)
        driven.loop.close()

    run(scene.clock, main())


def timers_left() -> int:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, Loop)
    return loop.timers_left()


# -- publish and reap -----------------------------------------------------------------------


def test_what_one_turn_submits_is_one_group_with_one_ring(scene: Scene) -> None:
    async def test(driven: Driven) -> None:
        for _ in range(2):
            driven.submit(Listener())
        assert (driven.admitted(), scene.rings) == (0, 0)
        await turns(1)
        assert (driven.admitted(), scene.rings) == (2, 1)
        driven.submit(Listener())
        await turns(1)
        assert (driven.admitted(), scene.rings) == (1, 2)

    driving(scene, test)


def test_what_is_submitted_or_cancelled_is_there_when_the_batcher_is_rung(scene: Scene) -> None:
    seen: list[tuple[int, int]] = []

    async def test(driven: Driven) -> None:
        cancels = scene.lane_client.lane.cancels
        scene.at_ring = lambda: seen.append((driven.admitted(), cancels.get()))
        pending = driven.submit(Listener(), deadline_ns=NOW + 20 * MS)
        other = driven.submit(Listener())
        await asyncio.sleep(0.025)
        assert pending.abandoned
        driven.loop.abandon(scene.lane_client, other)
        await turns(1)
        assert seen == [(2, 0), (0, 1), (0, 2)]

    driving(scene, test)


def test_a_ring_tells_the_listener_and_is_forgotten(scene: Scene) -> None:
    async def test(driven: Driven) -> None:
        listener = Listener()
        pending = driven.submit(listener)
        await turns(1)
        scene.answer()
        await turns(2)
        assert listener.ended == [pending]
        assert scene.lane_client.allocator.claimed == 1, "the listener has the slots"
        assert not is_rung(scene.session.bell)
        assert scene.clock() == NOW

    driving(scene, test)


def test_slots_of_rows_that_nobody_wants_are_freed(scene: Scene) -> None:
    async def test(driven: Driven) -> None:
        driven.submit(Listener(wanted=False), 3)
        await turns(1)
        scene.answer()
        await turns(2)
        assert scene.lane_client.allocator.claimed == 0

    driving(scene, test)


def test_completions_that_nobody_rang_for_are_found_by_the_looks(scene: Scene) -> None:
    async def test(driven: Driven) -> None:
        for _ in range(3):
            listener = Listener()
            driven.submit(listener)
            await turns(1)
            scene.pool.finish_all()
            await asyncio.sleep(0.015)
            assert listener.ended == []
            await asyncio.sleep(0.01)
            assert len(listener.ended) == 1
            await asyncio.sleep(0.015)

    driving(scene, test)


def test_a_caller_that_has_gone_cancels_its_rows_and_rings(scene: Scene) -> None:
    async def test(driven: Driven) -> None:
        listener = Listener()
        done = driven.submit(listener)
        await turns(1)
        scene.answer()
        await turns(2)
        driven.loop.abandon(scene.lane_client, done)
        await turns(1)
        assert (scene.rings, scene.lane_client.lane.cancels.get()) == (1, 0)
        gone = driven.submit(listener)
        await turns(1)
        driven.loop.abandon(scene.lane_client, gone)
        await turns(1)
        assert (scene.rings, scene.lane_client.lane.cancels.get()) == (3, 1)

    driving(scene, test)


def test_the_pool_is_told_when_the_last_row_has_left_a_moved_lane(scene: Scene) -> None:
    async def test(driven: Driven) -> None:
        driven.submit(Listener(wanted=False))
        await turns(1)
        scene.lane_client.lane.gate.set(int(LaneGate.MOVED))
        scene.lane_client.lane.generation.set(1)
        scene.answer()
        await turns(2)
        assert receive_form(scene.session.theirs)[0] == {"op": "left", "serial": 7}

    driving(scene, test)


# -- time -----------------------------------------------------------------------------------


def test_a_late_request_fails_at_the_next_look_and_its_rows_are_cancelled(scene: Scene) -> None:
    async def test(driven: Driven) -> None:
        in_time, late = Listener(), Listener()
        driven.submit(in_time, deadline_ns=NOW + 21 * MS)
        driven.submit(late, deadline_ns=NOW + 20 * MS)
        await turns(1)
        await asyncio.sleep(0.0205)
        (error,) = late.ended
        assert isinstance(error, DeadlineExceeded)
        assert str(error) == "model 'm' did not answer before the deadline"
        assert in_time.ended == []
        assert (scene.rings, scene.lane_client.lane.cancel.tolist()[:2]) == (2, [0, 1])

    driving(scene, test)


def test_a_loop_at_rest_looks_for_the_deadline_of_a_new_request(scene: Scene) -> None:
    async def test(driven: Driven) -> None:
        await asyncio.sleep(0.1)
        listener = Listener()
        driven.submit(listener, deadline_ns=NOW + 130 * MS)
        await asyncio.sleep(0.05)
        assert len(listener.ended) == 1

    driving(scene, test)


def test_there_is_one_timer_and_at_rest_it_is_a_long_one(scene: Scene) -> None:
    async def test(driven: Driven) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, Loop)
        assert timers_left() == 1
        for _ in range(3):
            driven.submit(Listener(wanted=False))
            assert timers_left() == 1
        await turns(1)
        assert [round(timer.when(), 6) for timer in loop.timers] == [1000.5, 1000.02]
        scene.answer()
        await asyncio.sleep(0.03)
        assert timers_left() == 1
        assert round(loop.timers[-1].when(), 6) == 1000.52

    driving(scene, test)


# -- room -----------------------------------------------------------------------------------


@pytest.mark.parametrize("word", ["completion", "self bell", "close"])
def test_who_waits_for_room_is_woken(scene: Scene, word: str) -> None:
    async def test(driven: Driven) -> None:
        driven.submit(Listener())
        gone, waiting, other = (asyncio.create_task(driven.loop.room()) for _ in range(3))
        await turns(1)
        gone.cancel()
        await turns(1)
        assert not waiting.done()
        if word == "completion":
            scene.answer()
        elif word == "self bell":
            scene.session.self_bell.ring()
        else:
            driven.loop.close()
        await turns(3)
        assert [task.done() for task in (gone, waiting, other)] == [True] * 3
        assert scene.clock() == NOW
        assert driven.loop.over or not is_rung(scene.session.self_bell)

    driving(scene, test)


# -- the end --------------------------------------------------------------------------------


def test_closing_fails_what_is_under_way_and_leaves_nothing_on_the_loop(scene: Scene) -> None:
    async def test(driven: Driven) -> None:
        session, listener = scene.session, Listener()
        fds = [session.bell.fd, session.self_bell.fd, session.channel.fileno()]
        driven.submit(listener, 2)
        driven.submit(listener)
        await turns(1)
        for _ in range(2):
            driven.loop.close()
            assert [type(error) for error in listener.ended] == [PoolStopped] * 2
            assert driven.loop.given_up == 2
        assert (session.closed, driven.loop.over, driven.lost) == (True, True, 0)
        loop = asyncio.get_running_loop()
        assert [loop.remove_reader(fd) for fd in fds] == [False] * 3
        assert timers_left() == 0

    driving(scene, test)


def test_nothing_is_published_after_the_end(scene: Scene) -> None:
    async def test(driven: Driven) -> None:
        pending = driven.submit(Listener())
        driven.loop.close()
        driven.loop.abandon(scene.lane_client, pending)
        await turns(2)
        assert (driven.admitted(), scene.rings) == (0, 0)

    driving(scene, test)


def test_a_pool_that_has_gone_ends_the_loop_and_is_told_once(scene: Scene) -> None:
    async def test(driven: Driven) -> None:
        listener = Listener()
        driven.submit(listener)
        await turns(1)
        assert not driven.loop.over
        scene.stop()
        await turns(3)
        assert [type(error) for error in listener.ended] == [PoolStopped]
        assert (driven.loop.over, driven.lost) == (True, 1)

    driving(scene, test)


def test_it_belongs_to_one_loop(scene: Scene) -> None:
    async def elsewhere(driven: Driven) -> bool:
        return driven.loop.runs_here()

    async def test(driven: Driven) -> None:
        assert driven.loop.runs_here()
        assert not await asyncio.to_thread(asyncio.run, elsewhere(driven))
        driven.loop.close()

    async def main() -> None:
        await test(Driven(scene))

    asyncio.run(main())


# -- what the pool says ---------------------------------------------------------------------


def test_what_the_pool_says_is_heard(scene: Scene) -> None:
    heard: list[Any] = []

    async def main() -> None:
        driven = Driven(scene, lambda word, fds: heard.append((word, fds)))
        scene.session.theirs.send(CHANGED)
        await turns(2)
        assert heard == [(CHANGED, [])]
        await turns(2)
        assert len(heard) == 1
        driven.loop.close()

    run(scene.clock, main())


def test_a_word_that_cannot_be_taken_ends_the_session(scene: Scene) -> None:
    def full(word: Any, fds: list[int]) -> None:
        raise OSError("too many open files")

    async def main() -> None:
        driven = Driven(scene, full)
        scene.session.theirs.send(CHANGED)
        await turns(2)
        assert (driven.loop.over, driven.lost) == (True, 1)

    run(scene.clock, main())


def test_all_that_was_said_already_is_heard_before_the_loop_goes_round(scene: Scene) -> None:
    heard: list[Any] = []

    async def main() -> None:
        driven = Driven(scene, lambda word, fds: heard.append(word))
        for _ in range(2):
            scene.session.theirs.send(CHANGED)
        driven.loop.listen()
        assert heard == [CHANGED] * 2
        scene.stop()
        driven.loop.listen()
        assert (driven.loop.over, driven.lost) == (True, 1)

    run(scene.clock, main())


def test_after_the_end_there_is_nothing_to_listen_to(scene: Scene) -> None:
    async def main() -> None:
        driven = Driven(scene, lambda word, fds: None)
        driven.loop.close()
        driven.loop.listen()
        assert driven.lost == 0

    run(scene.clock, main())


def test_a_client_that_is_told_nothing_does_not_listen(scene: Scene) -> None:
    async def test(driven: Driven) -> None:
        scene.session.theirs.send(CHANGED)
        driven.loop.listen()
        await turns(2)
        assert scene.session.has_word()

    driving(scene, test)
