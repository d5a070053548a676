"""The lane clients of one session: one for each model in use, and those whose lanes have moved."""

from __future__ import annotations

from batchpool.client.lane_client import LaneClient


class LaneSet(dict[str, LaneClient]):
    """The lane clients by model; a lane client that takes another's place does not end the other.

    driven: all of them, those too that have moved and have rows under way: whoever reaps goes over
    these. moving: whether any of them has moved. A lane client refers to this, not to the session,
    which ends when nobody refers to it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.driven: list[LaneClient] = []
        self.moving = False

    def __setitem__(self, model: str, lane_client: LaneClient) -> None:
        super().__setitem__(model, lane_client)
        self.driven.append(lane_client)

    def note_move(self) -> None:
        """A lane client has found that its gate says MOVED."""
        self.moving = True

    def part(self) -> list[LaneClient]:
        """Forget the moved lane clients of all models; those without rows are
        returned, though views of them may be in use."""
        for model in [model for model, lane_client in self.items() if lane_client.has_moved]:
            del self[model]
        done = [
            lane_client
            for lane_client in self.driven
            if lane_client.has_moved and not lane_client.has_rows
        ]
        for lane_client in done:
            lane_client.lent.keep(lane_client)
            self.driven.remove(lane_client)
        self.moving = any(lane_client.has_moved for lane_client in self.driven)
        return done

    def keep_views(self) -> None:
        """Keep what views of the lanes show: the client is about to leave all of them."""
        for lane_client in self.driven:
            if lane_client.lent.n:
                lane_client.lent.keep(lane_client)

    def clear(self) -> None:
        super().clear()
        self.driven.clear()
