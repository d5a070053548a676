"""The server, or a model, is ready only while a request would be taken."""

from __future__ import annotations

import pytest

from batchpool.core.errors import Draining, NotReady
from batchpool.core.layout.states import PoolState
from tests.unit.frontend.frontend_double import edge
from tests.unit.frontend.loops import on_loop
from tests.unit.frontend.models import Affine, Echo


@on_loop
async def test_each_state_of_the_pool_has_its_answer() -> None:
    async with edge(Affine) as it:
        readiness, page = it.view.readiness, it.pool.session.state_page
        affine = it.view.endpoints.find("affine")
        readiness.check()
        readiness.check_model(affine)
        for state in (PoolState.DRAINING, PoolState.STOPPED):
            page.state.set(int(state))
            for check in (readiness.check, lambda: readiness.check_model(affine)):
                with pytest.raises(Draining, match="takes no new requests"):
                    check()
        page.state.set(int(PoolState.STARTING))
        with pytest.raises(NotReady, match="the server is starting"):
            readiness.check()
        readiness.check_model(affine)


@on_loop
async def test_a_batcher_that_stands_still_makes_nothing_ready() -> None:
    async with edge(Affine) as it:
        it.pool.session.state_page.stalled.set(1)
        affine = it.view.endpoints.find("affine")
        for check in (it.view.readiness.check, lambda: it.view.readiness.check_model(affine)):
            with pytest.raises(NotReady, match="batcher makes no progress"):
                check()


@on_loop
async def test_one_model_without_workers_makes_the_server_not_ready_and_no_other_model() -> None:
    async with edge(Affine, Echo, slots=4) as it:
        view, page = it.view, it.pool.session.state_page
        page.accepting[it.pool.session.models["echo"].index] = 0
        with pytest.raises(NotReady):
            view.readiness.check()
        view.readiness.check_model(view.endpoints.find("affine"))
        with pytest.raises(NotReady):
            view.endpoints.find("echo").check_open()
        with pytest.raises(NotReady):
            view.readiness.check_model(view.endpoints.find("echo"))


@on_loop
async def test_a_front_end_that_stops_is_not_ready_and_says_so_once() -> None:
    async with edge(Affine) as it:
        assert not it.view.stopping
        it.view.stop()
        assert it.view.stopping
        assert it.broadcaster.ended == "the server is shutting down"
        with pytest.raises(Draining):
            it.view.readiness.check()
