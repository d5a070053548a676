"""The pool's state page: what every process may know of it at a glance, read-only for clients."""

from __future__ import annotations

from batchpool.core.layout.segments import state_page_layout
from batchpool.core.layout.states import PoolState
from batchpool.shm.lane import Word
from batchpool.shm.segment import map_checked, word


class PoolStatePage:
    """The state page of a pool; only the supervisor maps it writable."""

    def __init__(self, fd: int, *, writable: bool = False) -> None:
        layout = state_page_layout()
        segment = map_checked(fd, layout, writable=writable)
        cells = segment.cells()
        self.state = Word(cells, word(layout, "state"))
        self.stalled = Word(cells, word(layout, "stalled"))
        self.edition = Word(cells, word(layout, "edition"))
        self.serving = segment.array(layout.columns["serving"])
        self.accepting = segment.array(layout.columns["accepting"])
        self._serving_at = segment.scalars(layout.columns["serving"])
        self._accepting_at = segment.scalars(layout.columns["accepting"])

    def serves(self, model: int) -> bool:
        """True if at least one warm worker serves the model with this index."""
        return self._serving_at[model] > 0

    def accepts(self, model: int) -> bool:
        """True if the model takes requests: a warm worker serves it, or one is soon back."""
        return self._accepting_at[model] > 0

    def is_ready(self) -> bool:
        return self.state.get() == PoolState.READY
