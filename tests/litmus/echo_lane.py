"""An echo lane with its client and server processes, which the tests start, watch and kill."""

from __future__ import annotations

import os
import signal
from typing import Any

from batchpool.shm.doorbell import Doorbell
from batchpool.shm.segment import map_checked, word
from tests.litmus import segments
from tests.litmus.processes import Side, SideFailed, Sides, await_


class EchoLane:
    """A lane, its two bells, and the task that every side is given.

    echo_lane["cq_tail"] is the value of a word of the lane.
    """

    def __init__(
        self, size: int, slots: int, total: int | None, arena_rows: int = 0, **more: Any
    ) -> None:
        self.size, self.slots = size, slots
        self.bells = Doorbell(), Doorbell()
        for bell in self.bells:
            os.set_inheritable(bell.fd, True)
        self.fd = segments.new_lane(size, slots, arena_rows)
        self.task: dict[str, Any] = {
            "fd": self.fd,
            "size": size,
            "slots": slots,
            "arena_rows": arena_rows,
            "total": total,
            "client_bell": self.bells[0].fd,
            "server_bell": self.bells[1].fd,
            "crashes": 0.0,
            "strays": False,
            **more,
        }
        layout = segments.echo_layout(size, slots, arena_rows)
        self._cells = map_checked(self.fd, layout).cells()
        self._at = {name: word(layout, name) for name in layout.words}

    def __getitem__(self, name: str) -> int:
        return self._cells[self._at[name]]

    def open(self) -> None:
        """Open the gate before the server starts, so that the client may start first."""
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


def kill_and_restart(echo_lane: EchoLane, kills: int, rows_between: int) -> dict[str, Any]:
    """Kill the server `kills` times; each next one takes over the lane.

    Returns the client's counts. rows_between: rows that are answered before each kill.
    """
    server = echo_lane.server()
    with Sides(echo_lane.client(), server) as sides:
        client = sides.sides[0]
        for kill in range(kills):
            passed = echo_lane["cq_tail"] + rows_between
            await_(lambda: echo_lane["cq_tail"] > passed or client.has_ended(), "answers")  # noqa: B023
            server.signal(signal.SIGKILL)
            server.process.wait()
            server = echo_lane.server(seed=kill + 2)
            sides.sides.append(server)
        return client.end()


def die_and_restart(echo_lane: EchoLane, rule: str) -> dict[str, Any]:
    """Let a server kill itself where the rule says, and a correct one take over."""
    server = echo_lane.server(rule=rule)
    with Sides(echo_lane.client(), server) as sides:
        ended = sides.first_end()
        if ended is not server or server.process.wait() != -signal.SIGKILL:
            raise SideFailed(f"{ended.role} ended before the death: {ended.counted()}")
        sides.sides.append(echo_lane.server())
        return sides.sides[0].end()
