"""Counting with one rule removed at a time; as tests/sim/mutations_batcher.py."""

from __future__ import annotations

from batchpool.batcher.completion import Endings, ModelQueue
from batchpool.batcher.metrics import End, Tally
from batchpool.batcher.worker import Batch, CrewMember
from batchpool.shm.stats.flight_recorder import Recorder
from tests.sim.mutations import Patch


def takeover_counts_again(patch: Patch) -> None:
    """The old batcher may have counted a batch and died before all of it was published."""
    patch.setattr(Recorder, "has", lambda self, process, token: False)


def counted_after_publication(patch: Patch) -> None:
    """A batcher that dies in between has answered rows that nobody counts."""
    account = Endings._account
    late: list[tuple[Endings, CrewMember, ModelQueue, Batch, int]] = []

    def later(
        self: Endings, member: CrewMember, model: ModelQueue, batch: Batch, outcome: int
    ) -> None:
        late.append((self, member, model, batch, outcome))

    hand_back = Endings._hand_back

    def then(self: Endings, *rows: object, **more: object) -> None:
        hand_back(self, *rows, **more)  # type: ignore[arg-type]
        while late:
            account(*late.pop())

    patch.setattr(Endings, "_account", later)
    patch.setattr(Endings, "_hand_back", then)


def rows_of_the_gone_are_forgotten(patch: Patch) -> None:
    end = Tally.end

    def forgetful(self: Tally, how: int, n: int) -> None:
        if how != End.CLIENT_GONE:
            end(self, how, n)

    patch.setattr(Tally, "end", forgetful)
