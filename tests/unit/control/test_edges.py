"""Messages of control channels: each is what its struct says, and is taken over its edge only."""

from __future__ import annotations

import os
from typing import Any

import msgpack
import pytest

from batchpool.control.channel import Channel, pair
from batchpool.control.edges import (
    EDGES,
    FROM_CLIENT,
    FROM_DISCOVERY,
    FROM_FRONTEND,
    TO_BATCHER,
    TO_FRONTEND,
    TO_WORKER,
    Edge,
    InvalidMessage,
    tag_of,
)
from batchpool.control.message_tables import tables_markdown
from batchpool.control.messages import Attach, FrontendServing, LaneForm, OpenLane, PlanChanged
from batchpool.control.process_messages import BatcherModel, DropLane, StartBatcher
from batchpool.core.scheduler.limits import Limits
from tests.unit.control.packets import send_form


def refusal(form: Any, edge: Edge[Any] = FROM_CLIENT, descriptors: int = 0) -> str:
    with pytest.raises(InvalidMessage) as caught:
        edge.decode(msgpack.packb(form), descriptors)
    return str(caught.value)


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ({"op": "lane"}, "missing required field `model`"),
        ({"op": "lane", "model": 7}, "Expected `str`, got `int` - at `$.model`"),
        ({"op": "lane", "model": None}, "Expected `str`, got `None` - at `$.model`"),
        ({"op": "lane", "model": "a", "more": 1}, "unknown field `more`"),
        ({"op": "left", "serial": -1}, "Expected `int` >= 0 - at `$.serial`"),
        ({"op": "left", "serial": True}, "Expected `int`, got `bool` - at `$.serial`"),
        ({"op": "drain", "on": 1}, "Expected `bool | null`, got `int` - at `$.on`"),
        ({"op": "tally"}, "Invalid value 'tally' - at `$.op`"),
        ({"model": "a"}, "missing required field `op`"),
    ],
)
def test_a_refusal_says_what_came_and_what_was_expected(form: Any, text: str) -> None:
    said = refusal(form)
    assert text in said
    assert said.endswith("(a message client -> supervisor)")


@pytest.mark.parametrize(
    ("form", "edge"),
    [
        ({"op": "serving"}, FROM_CLIENT),
        ({"op": "start"}, FROM_CLIENT),
        ({"op": "begin", "takeover": True, "evicted": []}, TO_WORKER),
        ({"op": "drop_lane", "lane": 1}, TO_BATCHER),
        ({"op": "status"}, TO_FRONTEND),
        ({"op": "ready"}, FROM_DISCOVERY),
    ],
)
def test_a_message_of_another_edge_is_refused(form: Any, edge: Edge[Any]) -> None:
    assert f"Invalid value '{form['op']}'" in refusal(form, edge)


def test_a_front_end_asks_as_every_client_does_and_says_that_it_serves() -> None:
    asks = FROM_FRONTEND.decode(msgpack.packb({"op": "lane", "model": "a"}), 0)
    assert asks == OpenLane("a")
    assert FROM_FRONTEND.decode(msgpack.packb({"op": "serving"}), 0) == FrontendServing()


def test_a_client_of_another_version_is_understood_so_far_as_to_be_told() -> None:
    form = {"op": "attach", "version": 99, "pinned": True, "colour": "red"}
    assert FROM_CLIENT.decode(msgpack.packb(form), 0) == Attach(99, pinned=True)


@pytest.mark.parametrize("descriptors", [1, 2])
def test_a_wrong_number_of_descriptors_is_refused_and_they_are_closed(descriptors: int) -> None:
    ours, theirs = pair()
    before = set(os.listdir("/proc/self/fd"))
    send_form(theirs, {"op": "attach", "version": 1}, [0] * descriptors)
    with pytest.raises(InvalidMessage) as caught:
        Channel(ours.sock, trusted=False).receive(FROM_CLIENT)
    assert str(caught.value) == (
        "bad control message: 'attach' comes with no descriptors, not with"
        f" {descriptors} descriptors"
    )
    assert set(os.listdir("/proc/self/fd")) == before
    theirs.send(OpenLane("a"))
    assert ours.receive(FROM_CLIENT) == (OpenLane("a"), []), "the connection goes on"
    ours.close()
    theirs.close()


def test_a_changed_plan_comes_with_a_descriptor_for_each_lane() -> None:
    ours, theirs = pair()
    message = PlanChanged((), {"drain_s": 1.5}, 3, (LaneForm(1, 0, 8, "d"), LaneForm(2, 1, 8, "e")))
    theirs.send(message, [0, 1])
    found, fds = ours.receive(TO_FRONTEND)
    assert (found, len(fds)) == (message, 2)
    theirs.send(message, [0])
    with pytest.raises(InvalidMessage, match="comes with 2 descriptors"):
        ours.receive(TO_FRONTEND)
    for fd in fds:
        os.close(fd)
    ours.close()
    theirs.close()


def test_limits_arrive_as_they_were() -> None:
    model = BatcherModel(1, {"name": "a"}, Limits(8, 5, sizes=(2, 8)), 3, True)
    message = StartBatcher((model,), 0, 4, 2, 10**9)
    ours, theirs = pair()
    theirs.send(message, [0, 0, 0, 0])
    found, fds = ours.receive(TO_BATCHER)
    for fd in fds:
        os.close(fd)
    assert found == message
    ours.close()
    theirs.close()


def test_no_two_messages_of_an_edge_have_one_tag() -> None:
    for edge in EDGES:
        tags = [tag_of(kind) for kind in edge.messages]
        assert len(set(tags)) == len(tags)


def test_the_tables_have_every_message_with_its_fields_and_descriptors() -> None:
    text = tables_markdown()
    for edge in EDGES:
        assert f"### {edge.name}\n" in text
        for kind in edge.messages:
            assert f"| `{tag_of(kind)}` |" in text
    assert (
        "| `drop_lane` | `lane`: int >= 0 |  | The batcher has closed a lane: unmap it. |" in text
    )
    assert "| `attach` | `version`: int, `pinned`: bool |  |" in text
    assert all(line.count(" | ") == 3 for line in text.splitlines() if line.startswith("| `"))
    assert DropLane.__doc__ in text
