"""The workers: who sits where, and what to do when one has gone.

A worker that ends is reaped, then its rows run again elsewhere. Another is started at once after
useful work, with exponential back-off when it died before finishing anything. Before the pool was
ready once, a worker that cannot load ends the start instead.

Beside those in their seats there may be others, while a reload lasts: heirs, and standbys. Their
ends are the reload's business; the witness hears of them.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from batchpool.core.config.schema import ServerConfig
from batchpool.core.errors import StartError
from batchpool.core.layout.segments import MODELS_MOST, worker_layout
from batchpool.shm.doorbell import Doorbell
from batchpool.shm.resource_errors import named
from batchpool.shm.segment import create, map_checked
from batchpool.shm.worker_segment import Records
from batchpool.supervisor.children.child import Child, Post, start_child
from batchpool.supervisor.children.worker_slot import Seat
from batchpool.supervisor.plan.plan import ModelPlan, Plan, WorkerPlan
from batchpool.supervisor.resources.lane_table import LaneEntry
from batchpool.supervisor.resources.resources import Holdings

_LOG = logging.getLogger("batchpool.supervisor")

TellBatcher = Callable[[dict[str, Any], Sequence[int]], None]


@dataclass(frozen=True)
class _Lost:
    """A dead worker whose rows the batcher has not dealt with yet."""

    number: int
    place: int
    pid: int
    model: int
    max_batch: int
    row: int
    fd: int
    bell: Doorbell


class Witness(Protocol):
    """Who hears of workers because they may be part of a reload (supervisor/reload/worker_swap_executor.py)."""

    def warm(self, seat: Seat) -> None:
        """A worker is warm."""

    def idle(self, seat: Seat) -> None:
        """A worker off duty has nothing in flight."""

    def lost(self, seat: Seat, child: Child) -> bool:
        """A worker has ended; whether that was the reload's business and not the seat's."""


class Workforce:
    """All workers. seats: one for each place of the plan. beside: heirs and standbys. remains:
    those that a reload does not wait for any more, since they do not end although they were killed;
    they have no seat, get no rows, and what they had comes back at their end.

    watch: the supervisor's event loop. tell_batcher: a message to the batcher, if there is one.
    flags: what every child is started with, by the settings that count for it.
    """

    def __init__(
        self,
        holdings: Holdings,
        watch: Callable[[Child], None],
        clock_ns: Callable[[], int],
        tell_batcher: TellBatcher,
        flags: Callable[[ServerConfig], list[str]],
    ) -> None:
        self._holdings = holdings
        self._watch = watch
        self._flags = flags
        self._clock_ns = clock_ns
        self._tell_batcher = tell_batcher
        self._numbers = 0
        self._turns = 0
        self._lost: dict[int, _Lost] = {}
        plan = holdings.plan
        self.seats = [
            new_seat(plan, model.entry, worker) for model in plan.models for worker in model.workers
        ]
        self.beside: list[Seat] = []
        self.remains: list[Seat] = []
        self.witness: Witness | None = None

    def __iter__(self) -> Iterator[Seat]:
        return iter([*self.seats, *self.beside, *self.remains])

    def of_child(self, child: Child) -> Seat:
        return next(seat for seat in self if seat.child is child)

    # -- starting -----------------------------------------------------------------------

    def start(self, seat: Seat) -> None:
        """A worker into an empty seat. StartError when there is no memory, descriptor or process
        to be had for it; the seat stays empty then."""
        holdings, model = self._holdings, seat.of
        layout = worker_layout(model.config.max_batch, holdings.max_lanes)
        seat.fd = create(layout, sealed=False, whose=seat.post.name)
        self._numbers += 1
        seat.number = self._numbers
        seat.row = holdings.ledger.row_for(seat, self)
        seat.ready = False
        seat.start_at_ns = None
        seat.waiting_since_ns = None
        try:
            with named(f"cannot start {seat.post.name}"):
                seat.bell = Doorbell()
                seat.records = Records(map_checked(seat.fd, layout), layout)
            child = start_child(
                "worker",
                ["batchpool.worker"],
                seat.post,
                started_ns=self._clock_ns(),
                flags=self._flags(seat.server),
                settings=seat.plan.settings(os.environ),
            )
        except StartError:
            os.close(seat.fd)
            if seat.bell is not None:
                seat.bell.close()
            seat.bell = seat.records = None
            raise
        seat.child = child
        start = {
            "op": "start",
            "place": seat.plan.index,
            "import": model.config.import_name,
            "spec": model.spec.to_wire(),
            "device": seat.plan.device,
            "max_batch": model.config.max_batch,
            "batch_sizes": list(model.config.batch_sizes),
            "max_lanes": holdings.max_lanes,
            "frontends": holdings.plan.frontends,
            "row": seat.row,
        }
        child.tell(start, [seat.fd, seat.bell.fd, holdings.batcher_bell.fd, holdings.meters_fd])
        for entry in holdings.lanes:
            if entry.model == seat.model:
                _tell_lane(child, entry)
        self._introduce(seat, self._tell_batcher)
        self._watch(child)

    def _introduce(self, seat: Seat, tell: TellBatcher) -> None:
        assert seat.bell is not None
        assert seat.child is not None
        message = {
            "op": "worker",
            "worker": seat.number,
            "place": seat.plan.index,
            "pid": seat.child.pid,
            "model": seat.model,
            "max_batch": seat.of.config.max_batch,
            "row": seat.row,
            "on_duty": seat.on_duty,
            "turn": seat.turn,
        }
        tell(message, [seat.fd, seat.bell.fd])

    def introduce_all(self, tell: TellBatcher) -> None:
        """To a new batcher: everybody, also the dead whose rows nobody has dealt with."""
        for seat in self:
            if seat.bell is not None:
                self._introduce(seat, tell)
        for lost in self._lost.values():
            message = {
                "op": "worker",
                "worker": lost.number,
                "place": lost.place,
                "pid": lost.pid,
                "model": lost.model,
                "max_batch": lost.max_batch,
                "row": lost.row,
                "on_duty": False,
                "turn": 0,
            }
            tell(message, [lost.fd, lost.bell.fd])

    def report_lost(self, tell: TellBatcher) -> None:
        """To a new batcher that has taken over: who is dead."""
        for number in self._lost:
            tell({"op": "worker_lost", "worker": number, "cause": "died"}, [])

    def has_any(self, entry: int) -> bool:
        """Whether there is a worker of this entry, or one whose rows nobody has dealt with."""
        models = [*(seat.model for seat in self), *(lost.model for lost in self._lost.values())]
        return entry in models

    # -- lanes --------------------------------------------------------------------------

    def has_remains(self, entry: int) -> bool:
        """Whether there is a worker of this entry that does not end."""
        return any(seat.model == entry for seat in self.remains)

    def leave_behind(self, seat: Seat) -> None:
        """Nobody waits for the end of this one any more."""
        for seats in (self.seats, self.beside):
            if seat in seats:
                seats.remove(seat)
        self.remains.append(seat)
        seat.part = "remains"
        if seat.child is not None:
            seat.child.condemned = True
        if seat.on_duty:
            self.relieve(None, seat)

    def announce_lane(self, entry: LaneEntry) -> None:
        for seat in (*self.seats, *self.beside):
            if seat.model == entry.model and seat.child is not None:
                _tell_lane(seat.child, entry)

    def drop_lane(self, entry: LaneEntry) -> None:
        for seat in (*self.seats, *self.beside):
            if seat.model == entry.model and seat.child is not None:
                seat.child.tell({"op": "unlane", "lane": entry.number})

    # -- who takes rows -----------------------------------------------------------------

    def relieve(self, on: Seat | None, off: Seat | None) -> None:
        """From now on new batches go to `on`, and to `off` no more, both in one message."""
        self._turns += 1
        message: dict[str, Any] = {"op": "duty", "turn": self._turns}
        for name, seat in (("on", on), ("off", off)):
            numbers = []
            if seat is not None:
                seat.on_duty, seat.turn = seat is on, self._turns
                if seat.bell is not None:
                    numbers.append(seat.number)
            message[name] = numbers
        self._tell_batcher(message, [])
        self.count_serving()

    def count_serving(self) -> None:
        board = self._holdings.board
        for entry in range(MODELS_MOST):
            board.serving[entry] = sum(s.serves for s in self.seats if s.model == entry)

    # -- what they say and how they end -------------------------------------------------

    def says(self, child: Child, message: dict[str, object]) -> None:
        seat = self.of_child(child)
        if message["op"] == "ready":
            seat.ready = True
            child.state = "serving"
            self.count_serving()
            took_s = (self._clock_ns() - child.started_ns) / 1e9
            _LOG.info("%s is warm on %s after %.1f s", seat.name, seat.plan.device, took_s)
            if self.witness is not None:
                self.witness.warm(seat)
        elif message["op"] == "failed":
            child.cause = str(message["error"])

    def idle(self, number: int, turn: int) -> None:
        """The batcher: this one, which is off duty, has nothing in flight any more."""
        for seat in self:
            same = seat.number == number and seat.turn == turn and not seat.on_duty
            if same and self.witness is not None:
                self.witness.idle(seat)

    def handled(self, number: int) -> None:
        """The batcher has taken every row of a lost worker: its segment may go."""
        lost = self._lost.pop(number)
        os.close(lost.fd)
        lost.bell.close()

    def gone(self, child: Child, *, was_ready: bool, stopping: bool) -> None:
        """A worker has ended and was reaped. StartError before the pool was ready once."""
        seat = self.of_child(child)
        assert seat.records is not None
        assert seat.bell is not None
        useful = seat.was_useful()
        seat.child = None
        seat.ready = False
        self.count_serving()
        why = child.why()
        self._lost[seat.number] = _Lost(
            seat.number, seat.plan.index, child.pid,
            seat.model, seat.of.config.max_batch, seat.row, seat.fd, seat.bell,
        )  # fmt: skip
        seat.records = None
        seat.bell = None
        self._tell_batcher({"op": "worker_lost", "worker": seat.number, "cause": why}, [])
        if not was_ready and not stopping:
            seat.post.last_error = why
            raise StartError(
                f"model {seat.of.spec.name!r} cannot be served: {seat.post.name} on"
                f" {seat.plan.device} {_while_loading(child, why)}"
            )
        if seat in self.remains:
            self.remains.remove(seat)
            _LOG.info("the %s (pid %d) have left at last", seat.name, child.pid)
            return
        if self.witness is not None and self.witness.lost(seat, child):
            return
        seat.post.last_error = why
        delay_s = seat.post.next_start_s(useful)
        seat.start_at_ns = self._clock_ns() + int(delay_s * 1e9)
        if not stopping:
            _LOG.warning(
                "%s (pid %d) %s; starting another in %.1f s",
                seat.post.name, child.pid, why, delay_s,
            )  # fmt: skip

    # -- time ---------------------------------------------------------------------------

    def tick(self, now_ns: int) -> int:
        """Start whoever is due; returns when somebody is next due (CLOCK_MONOTONIC ns)."""
        self.count_serving()  # one may have been condemned since
        due_ns = 1 << 62
        for seat in self.seats:
            if seat.start_at_ns is not None:
                if seat.start_at_ns <= now_ns:
                    self._start_again(seat, now_ns)
                due_ns = min(due_ns, seat.start_at_ns or due_ns)
        return due_ns

    def _start_again(self, seat: Seat, now_ns: int) -> None:
        try:
            self.start(seat)
        except StartError as exc:
            seat.start_at_ns = now_ns + int(seat.post.put_off_s(exc) * 1e9)


def new_seat(plan: Plan, entry: int, worker: WorkerPlan) -> Seat:
    """An empty seat of the plan's model with this entry."""
    model: ModelPlan = plan.entries[entry]
    post = Post(f"worker {worker.index} of {model.spec.name}")
    return Seat(entry, worker, post, model, plan.server)


def _tell_lane(child: Child, entry: LaneEntry) -> None:
    child.tell(
        {
            "op": "lane",
            "lane": entry.number,
            "serial": entry.serial,
            "slots": entry.layout.slots,
            "pinned": entry.pinned,
        },
        [entry.fd],
    )


def _while_loading(child: Child, error: str) -> str:
    """A failed start in words: what the worker said, or how it ended without a word."""
    if error == child.ending():
        return f"{error} while loading"
    return error if error.startswith("did not") else f"failed: {error}"
