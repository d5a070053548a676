"""The supervisor's children: who must be there, who is, and what to do when one is not.

    batcher     restarted at once if it ever ran; the new one takes over from shared memory
    front end   restarted; its lanes are closed and it gets new ones
    worker      reaped, then its rows run again elsewhere; restarted at once after useful work,
                with exponential back-off when it dies before finishing anything

Before the pool was ready once, a worker that cannot load ends the start instead.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable
from dataclasses import asdict

from batchpool.core.batching import Limits
from batchpool.core.errors import StartError
from batchpool.core.layout import worker_layout
from batchpool.pool.children import Child, Post, start_child
from batchpool.pool.holdings import Holdings
from batchpool.pool.lanes import LaneEntry
from batchpool.pool.seat import Seat
from batchpool.pool.vigil import Vigil
from batchpool.shm.doorbell import Doorbell
from batchpool.shm.pulse import beat_interval_ns, frontend_post
from batchpool.shm.records import Records
from batchpool.shm.segment import create, map_checked

_LOG = logging.getLogger("batchpool.supervisor")


class Staff:
    """All children. `watch(child)` and `unwatch(child)` are the supervisor's event loop."""

    def __init__(
        self,
        holdings: Holdings,
        watch: Callable[[Child], None],
        unwatch: Callable[[Child], None],
        clock_ns: Callable[[], int],
    ) -> None:
        self._holdings = holdings
        self._plan = holdings.plan
        self._watch = watch
        self._unwatch = unwatch
        self._clock_ns = clock_ns
        self._numbers = 0
        self.batcher_post = Post("batcher")
        self.batcher: Child | None = None
        self.frontend_posts = [Post(f"frontend {i}") for i in range(self._plan.frontends)]
        self.frontends: list[Child | None] = [None] * self._plan.frontends
        self._frontend_at_ns: dict[int, int] = {}
        self._batcher_at_ns: int | None = None
        self._lost: dict[int, tuple[int, int, Doorbell]] = {}  # number -> model, fd, bell
        self.seats = [
            Seat(index, worker, Post(f"worker {worker.index} of {model.spec.name}"))
            for index, model in enumerate(self._plan.models)
            for worker in model.workers
        ]
        configs = [model.config for model in self._plan.models]
        self._vigil = Vigil(self._plan.server, configs, holdings.board, holdings.pulse, clock_ns())
        self.was_ready = False
        self.stopping = False

    # -- starting -----------------------------------------------------------------------

    def start_all(self) -> None:
        self.start_batcher(takeover=False)
        for i in range(self._plan.frontends):
            self.start_frontend(i)
        for seat in self.seats:
            self.start_worker(seat)

    def _flags(self) -> list[str]:
        return ["--log-level", self._plan.server.log_level]

    def start_batcher(self, *, takeover: bool) -> None:
        holdings = self._holdings
        child = start_child(
            "batcher",
            ["batchpool.pool", "batcher"],
            self.batcher_post,
            started_ns=self._clock_ns(),
            flags=self._flags(),
        )
        self.batcher = child
        self._batcher_at_ns = None
        models = [
            {
                "spec": model.spec.to_wire(),
                "limits": asdict(Limits.of(model.config)),
                "attempts": model.config.attempts,
                "idempotent": model.config.idempotent,
            }
            for model in self._plan.models
        ]
        start = {
            "op": "start",
            "models": models,
            "max_lanes": self._plan.max_lanes,
            "posts": self._plan.posts,
            "beat_ns": beat_interval_ns(self._plan.server.stall_timeout_s),
        }
        child.tell(start, [holdings.batcher_bell.fd, holdings.pulse_fd])
        for entry in holdings.lanes:
            self._tell_lane(child, entry)
        for seat in self.seats:
            if seat.bell is not None:
                self._tell_worker(seat.number, seat.model, seat.fd, seat.bell)
        for number, (model, fd, bell) in self._lost.items():
            self._tell_worker(number, model, fd, bell)
        child.tell({"op": "begin", "takeover": takeover})
        for entry in holdings.lanes:
            if entry.closing:
                child.tell({"op": "unlane", "lane": entry.number})
        for number in self._lost:
            self._tell_lost(child, number, "died")
        if self.stopping:
            child.tell({"op": "drain"})
        self._watch(child)

    def _tell_worker(self, number: int, model: int, fd: int, bell: Doorbell) -> None:
        if self.batcher is not None:
            max_batch = self._plan.models[model].config.max_batch
            message = {"op": "worker", "worker": number, "model": model, "max_batch": max_batch}
            self.batcher.tell(message, [fd, bell.fd])

    def _tell_lost(self, batcher: Child, number: int, cause: str) -> None:
        batcher.tell({"op": "worker_lost", "worker": number, "cause": cause})

    def _tell_lane(self, batcher: Child, entry: LaneEntry) -> None:
        batcher.tell(
            {
                "op": "lane",
                "lane": entry.number,
                "serial": entry.serial,
                "model": entry.model,
                "slots": entry.layout.slots,
                "local": entry.local,
            },
            [entry.fd, entry.bell_fd],
        )

    def start_frontend(self, i: int) -> None:
        holdings = self._holdings
        own = {
            "--listen-fd": holdings.listeners[i].fileno(),
            "--pulse-fd": holdings.pulse_fd,
            "--posts": self._plan.posts,
            "--post": frontend_post(i),
        }
        child = start_child(
            "frontend",
            ["batchpool.edge"],
            self.frontend_posts[i],
            started_ns=self._clock_ns(),
            flags=[*(str(word) for flag in own.items() for word in flag), *self._flags()],
            fds=[own["--listen-fd"], own["--pulse-fd"]],
        )
        self.frontends[i] = child
        self._frontend_at_ns.pop(i, None)
        self._watch(child)

    def start_worker(self, seat: Seat) -> None:
        model = self._plan.models[seat.model]
        layout = worker_layout(model.config.max_batch, self._plan.max_lanes)
        seat.fd = create(layout, sealed=False)
        self._numbers += 1
        seat.number = self._numbers
        seat.bell = Doorbell()
        seat.records = Records(map_checked(seat.fd, layout), layout)
        seat.ready = False
        seat.start_at_ns = None
        seat.waiting_since_ns = None
        child = start_child(
            "worker",
            ["batchpool.pool", "worker"],
            seat.post,
            started_ns=self._clock_ns(),
            flags=self._flags(),
            settings=seat.plan.settings(os.environ),
        )
        seat.child = child
        start = {
            "op": "start",
            "import": model.config.import_name,
            "spec": model.spec.to_wire(),
            "device": seat.plan.device,
            "max_batch": model.config.max_batch,
            "batch_sizes": list(model.config.batch_sizes),
            "max_lanes": self._plan.max_lanes,
        }
        child.tell(start, [seat.fd, seat.bell.fd, self._holdings.batcher_bell.fd])
        for entry in self._holdings.lanes:
            if entry.model == seat.model:
                self._tell_worker_lane(child, entry)
        self._tell_worker(seat.number, seat.model, seat.fd, seat.bell)
        self._watch(child)

    def _tell_worker_lane(self, child: Child, entry: LaneEntry) -> None:
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

    # -- lanes --------------------------------------------------------------------------

    def announce_lane(self, entry: LaneEntry) -> None:
        """A new lane: the batcher and the model's workers map it."""
        if self.batcher is not None:
            self._tell_lane(self.batcher, entry)
        for seat in self.seats:
            if seat.model == entry.model and seat.child is not None:
                self._tell_worker_lane(seat.child, entry)

    def retire_lane(self, entry: LaneEntry) -> None:
        """Its client is gone: the batcher lets it go first, since rows may be RUNNING."""
        entry.closing = True
        if self.batcher is not None:
            self.batcher.tell({"op": "unlane", "lane": entry.number})

    def lane_closed(self, number: int) -> None:
        """The batcher has let it go: so do the workers, and the number is free again."""
        entry = self._holdings.lanes.get(number)
        if entry is None:
            return
        for seat in self.seats:
            if seat.model == entry.model and seat.child is not None:
                seat.child.tell({"op": "unlane", "lane": number})
        self._holdings.lanes.remove(number)

    # -- what children say and how they end ---------------------------------------------

    def worker_says(self, child: Child, message: dict[str, object]) -> None:
        seat = self._seat_of(child)
        if message["op"] == "ready":
            seat.ready = True
            child.state = "serving"
            self._count_serving()
            took_s = (self._clock_ns() - child.started_ns) / 1e9
            _LOG.info("%s is warm on %s after %.1f s", seat.post.name, seat.plan.device, took_s)
        elif message["op"] == "failed":
            child.cause = str(message["error"])

    def worker_handled(self, number: int) -> None:
        """The batcher has taken every row of a lost worker: its segment may go."""
        _, fd, bell = self._lost.pop(number)
        os.close(fd)
        bell.close()

    def _seat_of(self, child: Child) -> Seat:
        return next(seat for seat in self.seats if seat.child is child)

    def _count_serving(self) -> None:
        board = self._holdings.board
        for model in range(len(self._plan.models)):
            board.serving[model] = sum(s.ready for s in self.seats if s.model == model)

    def all_serve(self) -> bool:
        """Whether every worker of every model is warm and every front end listens."""
        listening = (child is not None and child.state == "serving" for child in self.frontends)
        return all(seat.ready for seat in self.seats) and all(listening)

    def on_gone(self, child: Child) -> None:
        """A child has ended and was reaped. StartError before the pool was ready once."""
        self._unwatch(child)
        useful = child.state in ("running", "serving")
        child.state = "gone"
        now_ns = self._clock_ns()
        if child.role == "worker":
            self._worker_gone(self._seat_of(child), child, now_ns)
        elif child.role == "batcher":
            self.batcher = None
            self._note(child)
            self._batcher_at_ns = now_ns + int(child.post.next_start_s(useful) * 1e9)
        else:
            i = self.frontends.index(child)
            self.frontends[i] = None
            if not self.stopping:
                self._note(child)
                delay_s = child.post.next_start_s(useful)
                self._frontend_at_ns[i] = now_ns + int(delay_s * 1e9)
        child.close()
        if not self.was_ready and not self.stopping and child.role != "worker":
            raise StartError(f"{child.post.name} {child.why()} before the pool was ready")

    def _note(self, child: Child) -> None:
        child.post.last_error = child.why()
        _LOG.warning("%s (pid %d) %s", child.post.name, child.pid, child.ending())

    def _worker_gone(self, seat: Seat, child: Child, now_ns: int) -> None:
        assert seat.records is not None
        assert seat.bell is not None
        useful = seat.was_useful()
        seat.child = None
        seat.ready = False
        self._count_serving()
        seat.post.last_error = child.why()
        self._lost[seat.number] = (seat.model, seat.fd, seat.bell)
        seat.records = None
        seat.bell = None
        if self.batcher is not None:
            self._tell_lost(self.batcher, seat.number, seat.post.last_error)
        if not self.was_ready and not self.stopping:
            name = self._plan.models[seat.model].spec.name
            raise StartError(
                f"model {name!r} cannot be served: {seat.post.name} on {seat.plan.device}"
                f" {_while_loading(child, seat.post.last_error)}"
            )
        delay_s = seat.post.next_start_s(useful)
        seat.start_at_ns = now_ns + int(delay_s * 1e9)
        if not self.stopping:
            _LOG.warning(
                "%s (pid %d) %s; starting another in %.1f s",
                seat.post.name, child.pid, seat.post.last_error, delay_s,
            )  # fmt: skip

    # -- time ---------------------------------------------------------------------------

    def tick(self) -> int:
        """Do what is due; returns when something is next due (CLOCK_MONOTONIC ns)."""
        now_ns = self._clock_ns()
        self._vigil.look(now_ns, self.watched(), self.seats, was_ready=self.was_ready)
        due_ns = now_ns + self._vigil.look_ns
        for child in self.everybody():
            child.flush()
        if self._batcher_at_ns is not None and not self.batcher:
            if self._batcher_at_ns <= now_ns:
                self.start_batcher(takeover=True)
            else:
                due_ns = min(due_ns, self._batcher_at_ns)
        for i, at_ns in list(self._frontend_at_ns.items()):
            if at_ns <= now_ns and not self.stopping:
                self.start_frontend(i)
            due_ns = min(due_ns, max(at_ns, now_ns))
        for seat in self.seats:
            if seat.start_at_ns is not None:
                if seat.start_at_ns <= now_ns:
                    self._start_again(seat, now_ns)
                due_ns = min(due_ns, seat.start_at_ns or due_ns)
        return due_ns

    def _start_again(self, seat: Seat, now_ns: int) -> None:
        try:
            self.start_worker(seat)
        except StartError as exc:  # no memory for its segment: the others serve on meanwhile
            seat.post.last_error = str(exc)
            delay_s = seat.post.next_start_s(useful=False)
            seat.start_at_ns = now_ns + int(delay_s * 1e9)
            _LOG.error("%s: %s; trying again in %.1f s", seat.post.name, exc, delay_s)

    def watched(self) -> list[Child | None]:
        """Who stamps the pulse, by its posts."""
        return [self.batcher, *self.frontends]

    def standing(self, since_ns: int) -> list[str]:
        """Who of them has not moved since then (CLOCK_MONOTONIC ns)."""
        return self._vigil.standing(self.watched(), since_ns)

    def everybody(self) -> list[Child]:
        workers = [seat.child for seat in self.seats]
        return [child for child in (*self.watched(), *workers) if child is not None]

    def stop_frontends(self, sig: signal.Signals = signal.SIGTERM) -> None:
        self._frontend_at_ns.clear()
        for child in self.frontends:
            if child is not None:
                child.kill(sig)

    def kill_all(self) -> None:
        """End every child now and reap it."""
        for child in self.everybody():
            child.kill()
        for child in self.everybody():
            child.process.wait()
            child.close()


def _while_loading(child: Child, error: str) -> str:
    """A failed start in words: what the worker said, or how it ended without a word."""
    if error == child.ending():
        return f"{error} while loading"
    return error if error.startswith("did not") else f"failed: {error}"
