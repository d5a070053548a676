"""The text of one generated sequence, as its tokens come, up to a stop string."""

from __future__ import annotations

from collections.abc import Sequence

from batchpool.text.incremental_decoder import IncrementalDecoder
from batchpool.text.stop_strings import StopScanner


class GeneratedText:
    """tokens: how many have come, up to the one with which a stop string was complete. stopped: the
    text has ended at a stop string; the sequence can be cancelled."""

    def __init__(self, decoder: IncrementalDecoder, stops: Sequence[str]) -> None:
        self._decoder = decoder
        self._scanner = StopScanner(stops)
        self._has_stops = bool(stops)
        self.tokens = 0

    @property
    def stopped(self) -> bool:
        return self._scanner.found

    def push(self, tokens: Sequence[int]) -> str:
        """The text that can be shown now that these tokens have come, perhaps ""."""
        if not self._has_stops:
            self.tokens += len(tokens)
            return self._decoder.push(tokens)
        pieces = []
        for token in tokens:  # one by one, for the token that completes a stop string
            if self.stopped:
                break
            self.tokens += 1
            pieces.append(self._scanner.push(self._decoder.push((token,))))
        return "".join(pieces)

    def end(self) -> str:
        """The text that was held back; the sequence has ended."""
        if self.stopped:
            return ""
        shown = self._scanner.push(self._decoder.end())
        return shown if self.stopped else shown + self._scanner.end()
