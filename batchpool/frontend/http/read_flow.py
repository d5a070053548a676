"""Flow control of one connection whose reading may be held."""

from __future__ import annotations

from uvicorn.protocols.http.flow_control import FlowControl


class ReadFlow(FlowControl):
    """uvicorn's flow control, with a hold: while it lasts, nobody resumes reading.

    uvicorn resumes reading whenever a request's body is asked for and whenever a response is
    complete, however much is waiting.
    """

    is_held = False

    def resume_reading(self) -> None:
        if not self.is_held:
            super().resume_reading()

    def hold_reading(self) -> None:
        """Pause reading until `let_read`."""
        self.is_held = True
        self.pause_reading()

    def let_read(self) -> None:
        """End the hold, and resume reading."""
        self.is_held = False
        self.resume_reading()
