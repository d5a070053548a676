"""bp.Client and bp.AsyncClient: that each argument of a call reaches what it is for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import batchpool as bp
from batchpool.client import sync_driver
from batchpool.client.call import socket_of
from batchpool.client.lane_client import LaneClient
from batchpool.client.session import Session
from batchpool.core.errors import InvalidRequest, ModelError, Overloaded, PoolStopped, Status
from batchpool.core.layout.states import LaneGate
from batchpool.core.scheduler.queue import QueueColumn
from tests.unit.client.lane_clients import NOW, S, answer, rows_of
from tests.unit.client.scene import WAIT_S, Scene
from tests.unit.specs import AFFINE

pytestmark = pytest.mark.usefixtures("held")
X = rows_of(2).tensors["x"]
Infer = Callable[..., Any]


@pytest.fixture
def held(scene: Scene) -> None:
    """Threads that resolve futures wait until something rings."""
    scene.waits.holds = True


def infer(*arguments: Any, **options: Any) -> Any:
    with bp.Client("here") as client:
        return client.infer(*arguments, **options)


def submit(*arguments: Any, **options: Any) -> Any:
    with bp.Client("here") as client:
        return client.submit(*arguments, **options).result(WAIT_S)


def infer_async(*arguments: Any, **options: Any) -> Any:
    async def main() -> Any:
        async with asyncio.timeout(WAIT_S), bp.AsyncClient("here") as client:
            return await client.infer(*arguments, **options)

    return asyncio.run(main())


every_way = pytest.mark.parametrize("call", [infer, submit, infer_async])


def answering(scene: Scene, status: Status = Status.OK) -> list[list[int]]:
    """Answer whatever is rung for; returns the priority and deadline of each first row."""
    seen: list[list[int]] = []

    def ring() -> None:
        rows = scene.pool.admit()
        if rows.shape[1]:
            seen.append(rows[[QueueColumn.PRIORITY, QueueColumn.DEADLINE_NS], 0].tolist())
            scene.pool.finish(*scene.pool.rows, status=status)
            scene.pool.rows.clear()
            scene.session.batchers_end.ring()

    scene.at_ring = ring
    return seen


@every_way
def test_a_calls_time_and_priority_reach_its_rows(scene: Scene, call: Infer) -> None:
    seen = answering(scene)
    found = call("m", x=X, timeout_s=3.0, priority=5)
    assert found["y"].tolist() == answer(2)
    assert seen == [[5, NOW + 3 * S]]
    call("m", x=X)
    assert seen[1] == [0, NOW + 30 * S]


@every_way
def test_tensors_may_stand_in_a_dict_and_as_keywords(scene: Scene, call: Infer) -> None:
    answering(scene)
    assert call("m", {"x": X})["y"].tolist() == answer(2)
    assert call("m", {"x": None}, x=X)["y"].tolist() == answer(2)


@every_way
def test_parameters_and_outputs_are_checked(scene: Scene, call: Infer) -> None:
    with pytest.raises(InvalidRequest, match="'k'"):
        call("m", x=X, parameters={"k": 1})
    with pytest.raises(InvalidRequest, match="has no output 'z'"):
        call("m", x=X, outputs=["z"])
    assert scene.rings == 0


@every_way
def test_errors_are_raised_or_stand_in_their_places(scene: Scene, call: Infer) -> None:
    answering(scene, Status.MODEL_ERROR)
    with pytest.raises(ModelError):
        call("m", x=X)
    entries = call("m", x=X, errors="return")["y"]
    assert [type(entry) for entry in entries] == [ModelError] * 2
    assert scene.lane_client.allocator.claimed == 0


def test_an_async_call_may_be_refused_instead_of_waiting(scene: Scene) -> None:
    async def main() -> None:
        async with asyncio.timeout(WAIT_S), bp.AsyncClient("here") as client:
            first = asyncio.create_task(client.infer("m", x=rows_of(9).tensors["x"]))
            while not scene.rings:
                await asyncio.sleep(0)
            with pytest.raises(Overloaded):
                await client.infer("m", x=X, wait_for_room=False)
            first.cancel()
            await asyncio.wait([first])

    asyncio.run(main())


@pytest.mark.parametrize("kind", [bp.Client, bp.AsyncClient])
def test_the_socket_is_the_servers_by_default(scene: Scene, kind: Any) -> None:
    for socket, path in ((None, socket_of(None, 8000)), (Path("/here"), "/here")):
        client = kind(socket, timeout_s=3.0, pinned=True)
        assert client.socket == path
        if kind is bp.Client:
            client.close()
        else:
            asyncio.run(_opened_and_closed(client))
        assert scene.connected.pop() == (path, 3.0, True)
        assert scene.session.closed


@pytest.mark.parametrize("kind", [bp.Client, bp.AsyncClient])
def test_a_port_names_the_pool_that_serves_on_it(
    kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUNTIME_DIRECTORY", "/run/here")
    client = kind(port=9000)
    assert client.socket == "/run/here/batchpool-9000.sock"
    if kind is bp.Client:
        client.close()
    for wrong in (0, 65536, "9000", 1.5):
        with pytest.raises(InvalidRequest, match=r"^port is .*number of the pool's HTTP port was"):
            kind(port=wrong)
    with pytest.raises(InvalidRequest, match=r"^socket = '/a' and port = 9000 came together; one"):
        kind("/a", port=9000)
    with pytest.raises(InvalidRequest) as caught:
        kind(9000)
    assert str(caught.value) == (
        "socket is 9000; the path of a pool's unix socket was expected; did you mean port=9000?"
    )
    with pytest.raises(InvalidRequest, match=r"^socket is \['a'\]; the path .* was expected$"):
        kind(["a"])
    with pytest.raises(InvalidRequest, match=r"^socket = '9000' and port = 9000 came together"):
        kind(9000, port=9000)


async def _opened_and_closed(client: bp.AsyncClient) -> None:
    async with client:
        assert list(await client.models()) == ["m"]
        assert repr(client) == f"<batchpool.AsyncClient of {client.socket}, connected>"


def test_a_client_that_is_left_is_closed_and_in_a_forked_child_it_is_not(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    with bp.Client("here") as client:
        assert client.models() == {
            "m": bp.ServedModel("m", AFFINE.inputs, AFFINE.outputs, (), 4, 30.0, True)
        }
        assert repr(client) == "<batchpool.Client of here, connected>"
        with monkeypatch.context() as child:
            child.setattr(sync_driver, "this_process", lambda: 1)
            client.close()
        assert not scene.session.closed
    assert scene.session.closed
    assert repr(client) == "<batchpool.Client of here, closed>"
    with pytest.raises(PoolStopped, match="closed"):
        client.models()


def test_rows_that_are_submitted_to_a_lane_that_moves_go_to_the_next(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It moves while the call is checked."""

    class Moving:
        def __index__(self) -> int:
            scene.lane_client.lane.gate.set(int(LaneGate.MOVED))
            return 7

    def new(session: Session, model: str, timeout_s: float) -> LaneClient:
        return scene.connect().lane_set["m"]

    monkeypatch.setattr(Session, "new_lane_client", new)
    with bp.Client("here") as client:
        first = scene.session
        answering(scene)
        future = client.submit("m", x=X, priority=Moving())  # type: ignore[arg-type]
        assert first.lane_set["m"] is scene.lane_client
        first.batchers_end.ring()
        assert future.result(WAIT_S)["y"].tolist() == answer(2)
