"""Status at the desk: answered with the batcher's counts, or without them when it is silent."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from batchpool.pool.clients import Attached
from batchpool.pool.desk import Desk
from batchpool.shm.channel import Channel, pair

SECOND = 1_000_000_000
COUNTS = {"affine": {"batches": 3}}


class BatcherDouble:
    """What the desk tells the batcher."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def tell(self, message: dict[str, Any]) -> None:
        assert message["op"] == "tally"
        self.asked.append(message["id"])


class Caller:
    """A local program with its connection to a desk."""

    def __init__(self, desk: Desk) -> None:
        self._theirs, ours = pair()
        self._theirs.sock.setblocking(False)
        self.attached = Attached("client", ours, None, -1)
        self._desk = desk

    def ask(self) -> None:
        assert self._desk.handle(self.attached, {"op": "status"}, [])

    def answer(self) -> Any:
        """The tallies that its answer was composed of; "none yet" before it came."""
        try:
            message, _ = self._theirs.receive()
        except BlockingIOError:
            return "none yet"
        assert message["op"] == "status"
        return message["status"]["of"]

    def close(self) -> None:
        self._theirs.close()
        self.attached.close()


class Office:
    """A desk with a clock of the test's own."""

    def __init__(self) -> None:
        self.now_ns = 1000 * SECOND
        self.batcher = BatcherDouble()
        self.staff = SimpleNamespace(batcher=self.batcher)
        holdings = SimpleNamespace(lanes=SimpleNamespace(of_owner=lambda owner: []))
        self.desk = Desk(
            cast(Any, holdings), cast(Any, self.staff), lambda t: {"of": t}, lambda: self.now_ns
        )
        self.callers = [Caller(self.desk) for _ in range(3)]

    def __enter__(self) -> Office:
        return self

    def __exit__(self, *exc: object) -> None:
        for caller in self.callers:
            caller.close()

    def tally(self, number: int) -> None:
        self.desk.tally_came({"op": "tally", "id": number, "models": COUNTS})


def test_the_counts_come_first() -> None:
    with Office() as office:
        caller, other, _ = office.callers
        caller.ask()
        other.ask()
        assert caller.answer() == "none yet"
        first, second = office.batcher.asked
        office.tally(second)
        assert (caller.answer(), other.answer()) == ("none yet", COUNTS)
        office.tally(first)
        assert caller.answer() == COUNTS
        office.now_ns += 10 * SECOND
        office.desk.tick()
        assert caller.answer() == "none yet", "one answer each"


def test_one_who_waited_a_second_is_answered_without_counts() -> None:
    with Office() as office:
        caller, other, _ = office.callers
        assert office.desk.tick() > office.now_ns
        caller.ask()
        office.now_ns += SECOND // 2
        other.ask()
        assert office.desk.tick() == office.now_ns + SECOND // 2
        office.now_ns += SECOND // 2
        assert office.desk.tick() == office.now_ns + SECOND // 2
        assert (caller.answer(), other.answer()) == (None, "none yet")
        office.now_ns += SECOND // 2
        assert office.desk.tick() > office.now_ns
        assert other.answer() is None


def test_a_silent_batcher_is_not_asked_again_until_it_speaks() -> None:
    with Office() as office:
        caller = office.callers[0]
        caller.ask()
        office.now_ns += SECOND
        office.desk.tick()
        assert caller.answer() is None
        for _ in range(1000):
            caller.ask()
            assert caller.answer() is None, "at once"
        (number,) = office.batcher.asked
        office.tally(number)
        assert caller.answer() == "none yet", "it was answered long ago"
        caller.ask()
        assert len(office.batcher.asked) == 2
        office.tally(office.batcher.asked[-1])
        assert caller.answer() == COUNTS


def test_the_end_of_the_batcher_ends_the_waiting_and_the_silence() -> None:
    with Office() as office:
        caller, other, third = office.callers
        caller.ask()
        office.now_ns += SECOND
        office.desk.tick()
        assert caller.answer() is None
        office.staff.batcher = None
        office.desk.batcher_gone()
        other.ask()
        assert other.answer() == {}
        office.staff.batcher = office.batcher
        third.ask()
        assert third.answer() == "none yet"
        office.desk.batcher_gone()
        assert third.answer() == {}


def test_a_caller_that_has_gone_is_not_answered() -> None:
    with Office() as office:
        caller = office.callers[0]
        caller.ask()
        office.desk.drop(caller.attached)
        (number,) = office.batcher.asked
        office.now_ns += 2 * SECOND
        assert office.desk.tick() > office.now_ns
        office.tally(number)
        assert isinstance(caller.attached.channel, Channel)
