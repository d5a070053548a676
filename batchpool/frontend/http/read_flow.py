"""Flow control of one connection whose reading may be held."""

from __future__ import annotations

from uvicorn.protocols.http.flow_control import FlowControl


class ReadFlow(FlowControl):
    """uvicorn's flow control, with two reasons more for which nothing is read.

    is_held: too much waits behind a request; while it lasts, nobody resumes reading. uvicorn would
    whenever a request's body is asked for and whenever a response is complete.
    awaits_turn: others are read first (read_turns.py). When the turn comes, reading goes on unless
    uvicorn has paused it meanwhile, as the application has yet to take what is there.
    """

    is_held = False
    awaits_turn = False
    _is_full = False  # uvicorn has paused reading

    def pause_reading(self) -> None:
        self._is_full = True
        super().pause_reading()

    def resume_reading(self) -> None:
        self._is_full = False
        self._go_on()

    def hold_reading(self) -> None:
        """Pause reading until `let_read`."""
        self.is_held = True
        super().pause_reading()

    def let_read(self) -> None:
        """End the hold, and resume reading."""
        self.is_held = False
        self.resume_reading()

    def await_turn(self) -> None:
        """Pause reading until `take_turn`."""
        self.awaits_turn = True
        super().pause_reading()

    def take_turn(self) -> None:
        """Resume reading, unless there is another reason not to read."""
        self.awaits_turn = False
        if not self._transport.is_closing():
            self._go_on()

    def _go_on(self) -> None:
        if not (self._is_full or self.is_held or self.awaits_turn):
            super().resume_reading()
