"""Continuous batching by one call of the model a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from batchpool.models.decoder import buckets
from batchpool.models.decoder.engine import DecoderEngine, Made
from batchpool.models.decoder.packed_cache import PackedCache
from batchpool.models.decoder.packed_calls import PROMPTS, PackedCalls
from batchpool.models.decoder.sequences import RunningSequence
from batchpool.models.decoder.slot_calls import Part
from batchpool.models.decoder.slot_state import Reading


@dataclass(frozen=True)
class _Launched:
    """A call that the device has been given. made: the sequences that have a token by it."""

    made: list[RunningSequence]
    reading: Reading


class PackedEngine(DecoderEngine):
    """Parts of prompts and a token for each slot in a single row.

    A step gives the device its next call before it waits for the one before, which needs none of
    the host's knowledge: so the device computes while the host checks, stores and sends tokens. A
    sequence that a token has ended meanwhile is computed once more, for nothing.

    rows: how many slots are decoded. chunks: how many tokens of prompts a call takes; both
    ascending, the largest of `chunks` bounds a step. ahead: False waits for each call at once.
    """

    def __init__(
        self,
        calls: PackedCalls,
        cache: PackedCache,
        rows: Sequence[int],
        chunks: Sequence[int],
        ahead: bool = True,
    ) -> None:
        super().__init__(calls, cache.clear)
        self._calls = calls
        self._rows = rows
        self._chunks = chunks
        self._ahead = ahead
        self._before: _Launched | None = None

    def step(self) -> Made:
        ended, self._ended = self._ended, []
        with torch.inference_mode():
            launched = self._launched()
        due, self._before = (self._before, launched) if self._ahead else (launched, None)
        made = [] if due is None else [each for each in due.made if self._runs(each)]
        if due is None or not made:
            return Made([], [], ended, [])
        return self._taken(made, due.reading, ended)

    def _runs(self, sequence: RunningSequence) -> bool:
        """False for one that has ended, or left, since the call."""
        return not sequence.over and self._running.get(sequence.number) is sequence

    def _launched(self) -> _Launched | None:
        """The next call; None where no sequence needs one."""
        running = [each for each in self._running.values() if not each.over and not each.is_filled]
        if not running:
            return None
        waiting = [sequence for sequence in running if not sequence.decodes]
        decoding = [sequence for sequence in running if sequence.decodes]
        made = self._run(waiting, decoding)
        return _Launched(made, self._state.start_reading()) if made else None

    def _run(
        self, waiting: Sequence[RunningSequence], decoding: Sequence[RunningSequence]
    ) -> list[RunningSequence]:
        slots = [sequence.slot for sequence in decoding]
        rows = buckets.smallest(self._rows, max(slots) + 1) if slots else 0
        if rows:
            self._set_live(slots)
        parts, chosen = self._parts(waiting)
        taken = sum(len(ids) for _, _, ids in parts)
        tokens = buckets.smallest(self._chunks, taken) if parts else 0
        logits = self._calls.run(rows, parts, tokens)
        at, made = list(slots), list(decoding)
        for sequence in decoding:
            sequence.kept += 1
        for row, (sequence, (_, _, ids)) in enumerate(zip(chosen, parts, strict=True)):
            sequence.kept += len(ids)
            if not sequence.rest:
                sequence.decodes = True
                at.append(rows + row)
                made.append(sequence)
        self._sample(logits, at, made)
        return made

    def _parts(
        self, waiting: Sequence[RunningSequence]
    ) -> tuple[list[Part], Sequence[RunningSequence]]:
        """Parts of the prompts that wait, those that joined first before others; and theirs."""
        left = self._chunks[-1]
        parts: list[Part] = []
        for sequence in waiting[:PROMPTS]:
            if not left:
                break
            ids = sequence.ids[sequence.kept : sequence.kept + left]
            parts.append((sequence.slot, sequence.kept, ids))
            left -= len(ids)
        return parts, waiting[: len(parts)]
