"""Stop strings: texts at which a generated text ends, and of which no part is ever shown.

What may be the beginning of a stop string is held back until the text that follows decides. The
text that is shown does not depend on the pieces in which it came.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopScanner:
    """Looks for the first of some stop strings in a text that comes in pieces.

    stops: none of them empty. The string whose last character comes first counts; of those that end
    there, the longest. found: the text has ended at one of them.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        assert all(stops), "an empty stop string"
        self._stops = tuple(stops)
        self._held = ""
        self.found = False

    def push(self, piece: str) -> str:
        """The text that can be shown now that this piece has come; "" once a string was found."""
        if not self._stops or self.found:
            return "" if self.found else piece
        text = self._held + piece
        places = [(at + len(stop), at) for stop in self._stops if (at := text.find(stop)) >= 0]
        if places:
            self.found, self._held = True, ""
            return text[: min(places)[1]]
        held_from = min(_beginning(text, stop) for stop in self._stops)
        self._held = text[held_from:]
        return text[:held_from]

    def end(self) -> str:
        """The text that was held back, which is shown since nothing follows it."""
        held, self._held = self._held, ""
        return held


def _beginning(text: str, stop: str) -> int:
    """The place from which the end of `text` is the beginning of `stop`; its length for none."""
    at = text.find(stop[0], max(0, len(text) - len(stop) + 1))
    while at >= 0:
        if stop.startswith(text[at:]):
            return at
        at = text.find(stop[0], at + 1)
    return len(text)
