"""The ports of one session: to each model that is used, and to lanes that have moved away."""

from __future__ import annotations

from batchpool.client.lane_client import LaneClient


class LaneSet(dict[str, LaneClient]):
    """The ports by model; a port that takes another's place does not end the other.

    driven: all of them, those too that have moved and have rows under way: whoever reaps goes over
    these. moving: whether any of them has moved. A port refers to this, and not to the session,
    which ends when nobody refers to it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.driven: list[LaneClient] = []
        self.moving = False

    def __setitem__(self, model: str, port: LaneClient) -> None:
        super().__setitem__(model, port)
        self.driven.append(port)

    def note_move(self) -> None:
        """A port has found that its gate says MOVED."""
        self.moving = True

    def part(self) -> list[LaneClient]:
        """No model has a port that has moved; those without rows are let go of, and returned."""
        for model in [model for model, port in self.items() if port.has_moved]:
            del self[model]
        done = [port for port in self.driven if port.has_moved and not port.map.claimed]
        for port in done:
            self.driven.remove(port)
        self.moving = any(port.has_moved for port in self.driven)
        return done

    def clear(self) -> None:
        super().clear()
        self.driven.clear()
