"""Simulated shared memory: every store is one event, and its process may be killed there.

`SimMemory` is a segment on a plain bytearray; `map(process)` gives one process's view of it,
which is what lanes and records are built on. A store of several elements is split into single
ones, in index order. Each is a chance to be killed right after it took effect, and each load
and store is a chance for other processes to run first (`pulse`).

Memory order is x86's total store order, but for tensor columns: a large copy may use
non-temporal stores, so those stay hidden from every other process until their writer's fence.
When a process dies its hidden stores land later (`land`), as a late DMA would.

`Killed` and `Fault` are no Exceptions, so that nothing which catches a model's errors
swallows them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from batchpool.core.layout.segments import Column, Layout
from batchpool.core.tensors.dtypes import Array

FORMATS: dict[str, Any] = {"u8": "Q", "u4": "I", "i8": "q", "u1": "B"}
TENSOR_COLUMNS = ("in.", "out.", "par.", "feat.", "pred.", "len.", "at.", "arena")


class Killed(BaseException):
    """The process was killed; none of its later loads and stores happens."""


class Fault(BaseException):
    """A rule or an invariant was broken."""


class Process:
    """One process that loads and stores. `kill_at`: dies right after that store, counted from 1."""

    def __init__(self, name: str, role: str, pulse: Callable[[], None]) -> None:
        self.name = name
        self.role = role
        self.stage = 0  # of its model that it runs, of a worker
        self.dead = False
        self.stores = 0
        self.kill_at = -1
        self.since = 0  # when its present step began, in events of the world
        self.now_ns = 0  # the time its present step was told
        self.hidden: dict[Place, dict[int, int]] = {}
        self.pulse = pulse

    def event(self) -> None:
        """Before each load and store: others may run; the dead do nothing."""
        if self.dead:
            raise Killed(self.name)
        self.pulse()

    def fence(self) -> None:
        self.event()
        self.land()

    def land(self) -> None:
        """Its hidden stores become visible to all."""
        for place, values in self.hidden.items():
            for at, value in values.items():
                place.flat[at] = value
        self.hidden.clear()

    def __repr__(self) -> str:
        return self.name


Rule = Callable[[Process, str, int, Any], None]


class Place:
    """One column of a segment, or all of it as words: what the processes share."""

    def __init__(self, name: str, memory: SimMemory, dtype: str, shape: tuple[int, ...], at: int):
        self.name = name
        self.memory = memory
        self.dtype = np.dtype(dtype)
        count = int(np.prod(shape))
        nbytes = count * self.dtype.itemsize
        self.flat: Any = (
            memoryview(memory.raw)[at : at + nbytes].cast(FORMATS[dtype]) if nbytes else []
        )
        self.array: Array = np.frombuffer(memory.raw, self.dtype, count, at).reshape(shape)
        self.index = np.arange(count).reshape(shape)
        self.hides = name.startswith(TENSOR_COLUMNS)

    def store(self, who: Process, at: int, value: int) -> None:
        """One elementary store. Most of the simulation's time is spent here."""
        if who.dead:
            raise Killed(who.name)
        who.pulse()
        if self.memory.enforce:
            self.memory.rule(who, self.name, at, value)
        if self.hides:
            who.hidden.setdefault(self, {})[at] = value
        else:
            self.flat[at] = value
        who.stores += 1
        if who.stores == who.kill_at:
            who.dead = True
            raise Killed(who.name)


class SharedWords:
    """One process's view of a one-dimensional place, for single loads and stores."""

    def __init__(self, place: Place, who: Process) -> None:
        self._place = place
        self._who = who

    def __len__(self) -> int:
        return len(self._place.flat)

    def __getitem__(self, at: int) -> int:
        self._who.event()
        own = self._who.hidden.get(self._place)
        value: int = own[at] if own and at in own else self._place.flat[at]
        return value

    def __setitem__(self, at: int, value: int) -> None:
        self._place.store(self._who, int(at), int(value))


class SharedOctets:
    """One process's view of a column's bytes, for runs of them. Stores are split into single
    ones. Only columns of bytes are read and written so: others have no place for each byte."""

    def __init__(self, place: Place, who: Process) -> None:
        self._place = place
        self._who = who

    def __getitem__(self, part: slice) -> Array:
        assert self._place.dtype.itemsize == 1
        self._who.event()
        places = range(*part.indices(len(self._place.flat)))
        found = self._place.array.reshape(-1)[part].copy()
        for at, value in self._who.hidden.get(self._place, {}).items():
            if at in places:
                found[at - places.start] = value
        return found

    def __setitem__(self, part: slice, value: bytes | memoryview) -> None:
        assert self._place.dtype.itemsize == 1
        places = range(*part.indices(len(self._place.flat)))
        for at, octet in zip(places, value, strict=True):
            self._place.store(self._who, at, octet)


class SharedArray:
    """One process's view of a column. Loads give copies; stores are split into elements."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, place: Place, who: Process) -> None:
        self._place = place
        self._who = who
        self.shape = place.array.shape
        self.dtype = place.dtype
        self.ndim = place.array.ndim

    def __len__(self) -> int:
        return len(self._place.array)

    def __getitem__(self, key: Any) -> Any:
        self._who.event()
        hidden = self._who.hidden.get(self._place)
        array = self._place.array
        if hidden:
            array = array.copy()
            array.reshape(-1)[list(hidden)] = list(hidden.values())
        found = array[key]
        return found.copy() if isinstance(found, np.ndarray) else found

    def __setitem__(self, key: Any, value: Any) -> None:
        where = self._place.index[key]
        if not isinstance(where, np.ndarray):
            self._place.store(self._who, int(where), self.dtype.type(value).item())
            return
        values = np.asarray(value).astype(self.dtype)
        store, who, places = self._place.store, self._who, where.ravel().tolist()
        if values.ndim == 0:
            element = values.item()
            for at in places:
                store(who, at, element)
            return
        if values.shape != where.shape:
            values = np.broadcast_to(values, where.shape)
        for at, element in zip(places, values.ravel().tolist(), strict=True):
            store(who, at, element)

    def __eq__(self, other: object) -> Any:
        return self[:] == other

    def max(self) -> Any:
        return self[:].max()


class Mapping:
    """A segment as one process has it mapped: the `Memory` of shm/segment.py."""

    def __init__(self, memory: SimMemory, who: Process) -> None:
        self._memory = memory
        self._who = who

    def cells(self) -> SharedWords:
        return SharedWords(self._memory.words, self._who)

    def scalars(self, column: Column) -> SharedWords:
        return SharedWords(self._memory.places[column.name], self._who)

    def array(self, column: Column) -> Any:
        """A `SharedArray`, which stands for an array of numpy."""
        return SharedArray(self._memory.places[column.name], self._who)

    def octets(self, column: Column) -> SharedOctets:
        return SharedOctets(self._memory.places[column.name], self._who)


class SimMemory:
    """One segment. `rule(who, name, at, value)` raises Fault where a store is not allowed."""

    def __init__(self, layout: Layout, enforce: bool) -> None:
        self.layout = layout
        self.enforce = enforce
        self.raw = bytearray(layout.total_bytes)
        self.rule: Rule = lambda who, name, at, value: None
        self.word_names = {offset // 8: name for name, offset in layout.words.items()}
        self.words = Place("words", self, "u8", (layout.total_bytes // 8,), 0)
        self.places = {
            c.name: Place(c.name, self, c.dtype, c.shape, c.offset) for c in layout.columns.values()
        }

    def map(self, who: Process) -> Mapping:
        return Mapping(self, who)

    def word(self, name: str) -> int:
        """A word as it stands, for checks."""
        value: int = self.words.flat[self.layout.words[name] // 8]
        return value

    def column(self, name: str) -> Any:
        """A column's elements as they stand, flat, for checks."""
        return self.places[name].flat
