"""The writers of core/layout/segments.py and the states of core/layout/states.py, for every store.

A lane's words have the writers that the layout names. On top of it:

    - counters only rise, and a ring entry that is pending is never overwritten;
    - a state word is stored by the owner of the state, and only legal moves;
    - a client writes a slot's headers and inputs only while it is FILLING;
    - a worker writes outputs and status only of rows that its own records hold, RUNNING, and that
      are in its own stage;
    - nobody dispatches past a deadline, nor what was cancelled before the step began;
    - a gate that says MOVED or GONE is never opened again, and nobody claims behind it;
    - a client writes into its arena only where no row stands that the pool has taken;
    - after the batcher reported a lane closed, only its client touches it.

Of a worker's records: the batcher writes a record only while it is free, token last; the
worker only while it is in use, `finished` last.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from batchpool.core.layout.segments import LANE_WORDS, WORKER_WORDS
from batchpool.core.layout.states import MOVES, OWNER, LaneGate, SlotOwner, SlotState
from tests.sim.memory import Fault, Process, SimMemory

_IN_THE_POOL = (int(SlotState.QUEUED), int(SlotState.RUNNING))  # plain ints compare faster

Ticket = tuple[int, int, int]  # lane number, slot, sequence


def _counter(who: Process, memory: SimMemory, name: str, value: int) -> None:
    """sq_tail, sq_head, cq_tail, cq_head: rising, and head <= tail <= head + capacity."""
    ring, end = name.split("_")
    words = {"tail": memory.word(f"{ring}_tail"), "head": memory.word(f"{ring}_head")}
    if value <= words[end]:
        raise Fault(f"{who} lowers {name} from {words[end]} to {value}")
    words[end] = value
    capacity = len(memory.column(ring))
    if not words["head"] <= words["tail"] <= words["head"] + capacity:
        raise Fault(f"{who} stores {name}: counters {words}, capacity {capacity}")


def _entry(who: Process, memory: SimMemory, ring: str, at: int) -> None:
    tail, head = memory.word(f"{ring}_tail"), memory.word(f"{ring}_head")
    if (at - head) % len(memory.column(ring)) < tail - head:
        raise Fault(f"{who} overwrites pending entry {at} of {ring}: head {head}, tail {tail}")


class LaneRules:
    """The rules of one lane. holder(ticket): the unreaped process whose records hold a row.

    clock: how many events there were.
    """

    def __init__(
        self,
        memory: SimMemory,
        number: int,
        client: Process,
        holder: Callable[[Ticket], Process | None],
        clock: Callable[[], int],
    ) -> None:
        self.closed = False
        self._clock = clock
        self._moved_at = -1  # the first event after the gate said so
        self._memory = memory
        self._number = number
        self._client = client
        self._holder = holder
        self._writers = {c.name: c.writer for c in memory.layout.columns.values()}
        self._cancelled: dict[tuple[int, int], int] = {}
        self._state = memory.column("state")
        self._sequence = memory.column("sequence")
        self._stage = memory.column("stage") if "stage" in self._writers else None
        self._row = {
            name: max(1, len(place.flat) // memory.layout.slots)
            for name, place in memory.places.items()
        }
        memory.rule = self

    def __call__(self, who: Process, name: str, at: int, value: Any) -> None:
        if self.closed and who is not self._client:
            raise Fault(f"{who} stores {name} of lane {self._number}, which was closed")
        if name == "words":
            self._store_word(who, self._memory.word_names[at], value)
        elif name in ("sq", "cq"):
            self._only(who, "client" if name == "sq" else "batcher", name)
            _entry(who, self._memory, name, at)
        elif name == "arena":
            self._store_in_arena(who, at)
        else:
            self._store_column(who, name, at // self._row[name], value)

    def _store_in_arena(self, who: Process, at: int) -> None:
        self._only(who, "client", "arena")
        memory = self._memory
        for slot, state in enumerate(self._state.tolist()):
            if state not in _IN_THE_POOL:
                continue
            lengths = memory.column("len.in.note")[2 * slot : 2 * slot + 2]
            size, notes = memory.column("size.in")[2 * slot : 2 * slot + 2]
            for column, nbytes in ("ids", 8 * size), ("note", sum(lengths[:notes])):
                start = memory.column(f"at.in.{column}")[slot]
                if start <= at < start + nbytes:
                    raise Fault(f"{who} overwrites {column} of slot {slot}, which is not DONE")

    def note_cancel(self, slot: int, use: int, event: int) -> None:
        """The client has cancelled this use, in whatever way it does that."""
        self._cancelled.setdefault((slot, use), event)

    def _only(self, who: Process, writer: str, name: str) -> None:
        if who.role != writer or (writer == "client" and who is not self._client):
            raise Fault(f"{who} stores {name} of lane {self._number}: the {writer}'s")

    def _store_word(self, who: Process, name: str, value: int) -> None:
        self._only(who, LANE_WORDS[name], name)
        if name == "gate":
            self._store_gate(who, LaneGate(value))
        if name.endswith(("_tail", "_head")):
            _counter(who, self._memory, name, value)
        elif name not in ("gate", "claimed", "lent") and value < self._memory.word(name):
            raise Fault(f"{who} lowers {name}")

    def _store_gate(self, who: Process, gate: LaneGate) -> None:
        now = LaneGate(self._memory.word("gate"))
        if now >= LaneGate.MOVED and gate < now:
            raise Fault(f"{who} opens the gate of lane {self._number} again: {gate.name}")
        if gate >= LaneGate.MOVED and self._moved_at < 0:
            self._moved_at = self._clock()

    def _store_column(self, who: Process, name: str, slot: int, value: int) -> None:
        state = self._state[slot]
        if self._memory.word("gate") == LaneGate.GONE:
            self._only(who, "client", f"{name}, behind GONE")
            return
        if name == "state":
            self._move(who, slot, SlotState(state), SlotState(value))
        elif name == "cancel":
            self._only(who, "client", name)
        elif name in ("status", "message", "message_len"):
            holder = self._holder((self._number, slot, self._sequence[slot]))
            if (
                who.role == "batcher"
                and OWNER[SlotState(state)] is SlotOwner.BATCHER
                and holder is None
            ):
                return
            self._held(who, name, slot, state)
        elif name == "size.out" and who.role == "batcher":
            if state != SlotState.SUBMITTED or value:
                raise Fault(
                    f"{who} stores length {value} of slot {slot} in {SlotState(state).name}"
                )
        elif self._writers[name] == "worker":
            self._held(who, name, slot, state)
        elif name in ("attempt", "stage"):
            self._only(who, "batcher", name)
            if OWNER[SlotState(state)] is not SlotOwner.BATCHER:
                raise Fault(f"{who} stores {name} of slot {slot} in state {SlotState(state).name}")
        else:
            self._only(who, self._writers[name], name)
            if state != SlotState.FILLING:
                raise Fault(f"{who} stores {name} of slot {slot} in state {SlotState(state).name}")

    def _held(self, who: Process, name: str, slot: int, state: int) -> None:
        ticket = (self._number, slot, self._sequence[slot])
        if who.role != "worker" or state != SlotState.RUNNING or self._holder(ticket) is not who:
            raise Fault(
                f"{who} stores {name} of {ticket} in state {SlotState(state).name},"
                f" held by {self._holder(ticket)}"
            )
        if self._stage is not None and self._stage[slot] != who.stage:
            raise Fault(f"{who} of stage {who.stage} runs {ticket} of stage {self._stage[slot]}")

    def _move(self, who: Process, slot: int, old: SlotState, new: SlotState) -> None:
        self._only(who, OWNER[old].value, f"state {old.name} -> {new.name}")
        if new not in MOVES[old]:
            raise Fault(f"{who} moves slot {slot} from {old.name} to {new.name}")
        if new is SlotState.FILLING and 0 <= self._moved_at < who.since:
            raise Fault(f"{who} claims slot {slot} of lane {self._number}, which has moved")
        if new is not SlotState.RUNNING:
            return
        use = self._sequence[slot]
        deadline_ns = self._memory.column("deadline_ns")[slot]
        if deadline_ns <= who.now_ns:
            raise Fault(f"{who} dispatches slot {slot} at {who.now_ns}, due at {deadline_ns}")
        if self._cancelled.get((slot, use), who.since) < who.since:
            raise Fault(f"{who} dispatches slot {slot} use {use}, cancelled before this step")


class RecordRules:
    """The rules of one worker's segment."""

    def __init__(self, memory: SimMemory, worker: Process) -> None:
        self._memory = memory
        self._worker = worker
        self._token = memory.column("token")
        self._freed = memory.column("freed")
        self._finished = memory.column("finished")
        self._writers = {c.name: c.writer for c in memory.layout.columns.values()}
        self._seen: tuple[bytes, dict[Ticket, int]] = (b"", {})
        self.inactive = False  # as the batcher has been told
        memory.rule = self

    def active(self, record: int) -> bool:
        """True if the record holds rows that the worker has not finished."""
        token = self._token[record]
        return bool(token != self._freed[record] and token != self._finished[record])

    def held(self) -> dict[Ticket, int]:
        """The rows of all active records, each with its record."""
        key = bytes(self._token) + bytes(self._freed) + bytes(self._finished)
        if key != self._seen[0]:
            records = self._memory.layout.slots
            tickets = self._memory.places["tickets"].array
            rows: dict[Ticket, int] = {}
            for record in filter(self.active, range(records)):
                of_record = tickets[record, :, : self._memory.column("n")[record]]
                rows |= dict.fromkeys(map(tuple, of_record.T.tolist()), record)
            self._seen = (key, rows)
        return self._seen[1]

    def __call__(self, who: Process, name: str, at: int, value: Any) -> None:
        memory = self._memory
        word = memory.word_names[at] if name == "words" else ""
        writer = WORKER_WORDS[word] if word else self._writers[name]
        if who.role != writer or (writer == "worker" and who is not self._worker):
            raise Fault(f"{who} stores {word or name}[{at}] of {self._worker}: the {writer}'s")
        if word:
            if word.endswith(("_tail", "_head")):
                _counter(who, memory, word, value)
        elif name in ("sq", "cq"):
            _entry(who, memory, name, at)
        elif name == "token":
            if self.inactive:
                raise Fault(f"{who} gives {self._worker} a batch, which is off duty")
            if value <= max(self._token) or self._token[at] != self._freed[at]:
                raise Fault(f"{who} takes record {at} with token {value}: it is not free")
        elif name == "freed":
            if value != self._token[at]:
                raise Fault(f"{who} frees record {at} as {value}; its token is {self._token[at]}")
        elif name == "finished":
            if value != self._token[at] or not self.active(at):
                raise Fault(f"{who} finishes record {at} as {value}: it is not active")
        elif name != "lanes":
            record = at // (len(memory.column(name)) // memory.layout.slots)
            if (writer == "batcher") != (self._token[record] == self._freed[record]):
                raise Fault(f"{who} stores {name} of record {record} while it may not")
