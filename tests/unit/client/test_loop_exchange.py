"""An exchange with the pool within an iteration of the loop."""

from __future__ import annotations

import pytest

from batchpool.client.pending_request import PendingRequest
from batchpool.core.errors import PoolStopped
from tests.unit.client.scene import Scene
from tests.unit.client.test_loop import Driven, Listener, driving
from tests.unit.inprocess.clock import turns


@pytest.fixture
def scene(scene: Scene) -> Scene:
    scene.connect()
    return scene


def test_within_an_iteration_rows_are_published_and_what_is_done_is_told(scene: Scene) -> None:
    async def test(driven: Driven) -> None:
        listener = Listener()
        pending = driven.submit(listener)
        driven.loop.exchange()
        assert (driven.admitted(), scene.rings) == (1, 1)
        driven.loop.exchange()
        assert (listener.ended, scene.rings) == ([], 1), "there is nothing to tell"
        scene.answer()
        driven.loop.exchange()
        assert listener.ended == [pending]
        await turns(2)
        assert (listener.ended, scene.rings) == ([pending], 1), "nothing is told twice"

    driving(scene, test)


def test_a_listener_that_asks_for_an_exchange_is_no_part_of_another_one(scene: Scene) -> None:
    async def test(driven: Driven) -> None:
        class Asks(Listener):
            def finished(self, pending: PendingRequest) -> bool:
                driven.submit(later)
                driven.loop.exchange()
                return super().finished(pending)

        first, later = Asks(), Listener()
        driven.submit(first)
        driven.loop.exchange()
        assert driven.admitted() == 1
        scene.answer()
        driven.loop.exchange()
        assert len(first.ended) == 1
        assert driven.admitted() == 0, "published at the end of the iteration"
        driven.loop.exchange()
        assert driven.admitted() == 1

    driving(scene, test)


def test_an_exchange_after_the_end_does_nothing(scene: Scene) -> None:
    async def test(driven: Driven) -> None:
        listener = Listener()
        driven.submit(listener)
        driven.loop.close()
        rings = scene.rings
        driven.loop.exchange()
        assert [type(each) for each in listener.ended] == [PoolStopped]
        assert scene.rings == rings

    driving(scene, test)
