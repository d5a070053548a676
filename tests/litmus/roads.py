"""A lane and the two processes on it, as the tests start, watch and kill them."""

from __future__ import annotations

import os
import signal
from typing import Any

from batchpool.core.layout.segments import lane_layout
from batchpool.shm.doorbell import Doorbell
from batchpool.shm.segment import map_checked, word
from tests.litmus import places
from tests.litmus.processes import Side, SideFailed, Sides, await_


class Road:
    """A lane, its two bells, and what every side needs to know of them."""

    def __init__(self, size: int, slots: int, total: int | None, **more: Any) -> None:
        self.size, self.slots = size, slots
        self.bells = Doorbell(), Doorbell()
        for bell in self.bells:
            os.set_inheritable(bell.fd, True)
        self.fd = places.new_lane(size, slots)
        self.task: dict[str, Any] = {
            "fd": self.fd,
            "size": size,
            "slots": slots,
            "total": total,
            "client_bell": self.bells[0].fd,
            "server_bell": self.bells[1].fd,
            "crashes": 0.0,
            "strays": False,
            **more,
        }
        layout = lane_layout(places.road_spec(size), slots)
        self._cells = map_checked(self.fd, layout).cells()
        self._at = {name: word(layout, name) for name in layout.words}

    def __getitem__(self, name: str) -> int:
        return self._cells[self._at[name]]

    def open(self) -> None:
        """Opens the server's side, before all else: the client may start at once."""
        self._cells[self._at["gate"]] = 1

    def client(self, **more: Any) -> Side:
        return Side("client", **{**self.task, **more})

    def server(self, **more: Any) -> Side:
        return Side("server", **{**self.task, **more})

    def both(self, **more: Any) -> Sides:
        return Sides(self.client(**more), self.server(**more))

    def close(self) -> None:
        os.close(self.fd)
        for bell in self.bells:
            bell.close()


def kill_and_restart(road: Road, kills: int, rows_between: int) -> dict[str, Any]:
    """Kill the server again and again; each next one takes the lane over as it stands."""
    server = road.server()
    with Sides(road.client(), server) as sides:
        client = sides.sides[0]
        for kill in range(kills):
            passed = road["cq_tail"] + rows_between
            await_(lambda: road["cq_tail"] > passed or client.has_ended(), "answers")  # noqa: B023
            server.signal(signal.SIGKILL)
            server.process.wait()
            server = road.server(seed=kill + 2)
            sides.sides.append(server)
        return client.enough()


def die_and_restart(road: Road, rule: str) -> dict[str, Any]:
    """A server that kills itself at a place the rule says; a sound one takes over."""
    server = road.server(rule=rule)
    with Sides(road.client(), server) as sides:
        ended = sides.first_end()
        if ended is not server or server.process.wait() != -signal.SIGKILL:
            raise SideFailed(f"{ended.role} ended before the death: {ended.counted()}")
        sides.sides.append(road.server())
        return sides.sides[0].enough()
