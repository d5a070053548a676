"""Continuous batching over the slots of one decoder: `join`, `step`, `leave`.

A step takes a chunk of the prompts that wait, those that joined first before others; it is bounded,
so that a long prompt delays a step of the sequences that run by no more than a chunk. It makes a
token for each of those. Then the tokens are read from the device, once. `SlotEngine` does that by
two calls of the model, `PackedEngine` (packed_engine) by one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch

from batchpool.models.decoder import buckets
from batchpool.models.decoder.sampling import Sampling, sampled
from batchpool.models.decoder.sequences import FreeSlots, RunningSequence
from batchpool.models.decoder.slot_cache import SlotCache
from batchpool.models.decoder.slot_calls import SlotCalls
from batchpool.models.decoder.slot_state import NO_NUMBER, Reading, SlotState, staged


@dataclass(frozen=True)
class Shapes:
    """The shapes of calls.

    chunks: of prompts. rows, lengths: how many slots are decoded, and how many tokens are looked
    back; ascending, () where any number will do, as without CUDA graphs.
    """

    chunks: tuple[buckets.Chunk, ...]
    rows: tuple[int, ...] = ()
    lengths: tuple[int, ...] = ()

    @property
    def are_fixed(self) -> bool:
        return bool(self.rows)


@dataclass(frozen=True)
class Made:
    """A step's tokens: numbers of the sequences, a token each, the numbers of those that ended by a
    token, and of those that have as many as they may have."""

    numbers: list[int]
    tokens: list[int]
    stopped: list[int]
    full: list[int]


class DecoderEngine(ABC):
    """The sequences that run in the slots of a cache. state: what the device knows of them. clear:
    overwrites a slot."""

    def __init__(self, state: SlotState, clear: Callable[[int], None]) -> None:
        self._state = state
        self._clear = clear
        self._free = FreeSlots(state.spare)
        self._running: dict[int, RunningSequence] = {}  # in the order in which they joined
        self._live: list[int] = []  # slots, as the device knows them
        self._ended: list[int] = []  # numbers that a step has to tell of

    def join(
        self,
        number: int,
        ids: list[int],
        tokens: int,
        stop_ids: frozenset[int] = frozenset(),
        sampling: Sampling | None = None,
    ) -> None:
        """Take up a sequence. ids: of its prompt, and of the tokens that it has already; 1 or more.
        tokens: how many more it gets at most. Raises IndexError when no slot is free."""
        assert number not in self._running, f"sequence {number} runs already"
        slot = self._free.take()
        ends_at = len(ids) + tokens
        self._running[number] = RunningSequence(number, slot, ids, ends_at, stop_ids, sampling)

    def end(self, number: int) -> None:
        """Let a sequence that has joined end at the next step, without a further token."""
        self._running[number].over = True
        self._ended.append(number)

    def leave(self, numbers: Iterable[int]) -> None:
        """Free the slots of sequences; those that do not run are ignored."""
        for number in numbers:
            sequence = self._running.pop(number, None)
            if sequence is None:
                continue
            if number in self._ended:
                self._ended.remove(number)
            if sequence.is_tainted:
                with torch.inference_mode():
                    self._clear(sequence.slot)
            self._free.give(sequence.slot)

    def step(self) -> Made:
        """Run one iteration.

        Raises FloatingPointError when logits of a sequence are infinite or no numbers.
        """
        running = [sequence for sequence in self._running.values() if not sequence.over]
        waiting = [sequence for sequence in running if not sequence.decodes]
        decoding = [sequence for sequence in running if sequence.decodes]
        ended, self._ended = self._ended, []
        with torch.inference_mode():
            made = self._run(waiting, decoding) if running else []
            if not made:
                return Made([], [], ended, [])
            return self._taken(made, self._state.start_reading(), ended)

    @abstractmethod
    def _run(
        self, waiting: Sequence[RunningSequence], decoding: Sequence[RunningSequence]
    ) -> list[RunningSequence]:
        """Take a chunk of the prompts that wait, and make a token on the device for each sequence
        that decodes; returns the sequences that have a new token there."""

    def _set_live(self, slots: list[int]) -> None:
        if slots != self._live:
            self._state.set_live(slots)
            self._live = slots

    def _sample(
        self, logits: torch.Tensor, at: Sequence[int], sequences: Sequence[RunningSequence]
    ) -> None:
        """Choose the tokens of those that do not want the likeliest. at: their rows of the
        logits."""
        rows, slots, samplings, positions = [], [], [], []
        for row, sequence in zip(at, sequences, strict=True):
            if sequence.sampling is not None:
                rows.append(row)
                slots.append(sequence.slot)
                samplings.append(sequence.sampling)
                positions.append(sequence.kept)
        if rows:
            chosen = logits[staged(rows, logits.device)]
            self._state.choose(slots, sampled(chosen, samplings, positions))

    def _taken(self, made: Sequence[RunningSequence], reading: Reading, stopped: list[int]) -> Made:
        """The tokens of sequences, read from the device."""
        read = reading.wait()
        tokens = [read[sequence.slot] for sequence in made]
        tainted = [each for each, token in zip(made, tokens, strict=True) if token == NO_NUMBER]
        if tainted:
            for sequence in tainted:
                sequence.is_tainted = True
            raise FloatingPointError(
                f"the logits of {len(tainted)} of {len(made)} sequences are infinite or no numbers;"
                " another dtype of the model, as bfloat16 or float32, may hold them"
            )
        full = []
        for sequence, token in zip(made, tokens, strict=True):
            if sequence.append(token):
                stopped.append(sequence.number)
            elif sequence.over:
                full.append(sequence.number)
        return Made([sequence.number for sequence in made], tokens, stopped, full)


class SlotEngine(DecoderEngine):
    """Two calls a step: a rectangle of prompts, and a token for each slot."""

    def __init__(self, calls: SlotCalls, cache: SlotCache, shapes: Shapes) -> None:
        super().__init__(calls, cache.clear)
        self._calls = calls
        self._shapes = shapes

    def _run(
        self, waiting: Sequence[RunningSequence], decoding: Sequence[RunningSequence]
    ) -> list[RunningSequence]:
        made = self._prefill(waiting) if waiting else []
        if decoding:
            self._decode(decoding)
            made += decoding
        return made

    def _prefill(self, waiting: Sequence[RunningSequence]) -> list[RunningSequence]:
        """Take a chunk of the prompts that wait; returns the sequences whose prompt is complete,
        which have a token on the device."""
        rests = [sequence.rest for sequence in waiting]
        rows, tokens = buckets.best_chunk(self._shapes.chunks, rests)
        chosen = waiting[:rows]
        if not self._shapes.are_fixed:
            rows, tokens = len(chosen), min(tokens, max(rests[:rows]))
        seen = max(sequence.kept + min(sequence.rest, tokens) for sequence in chosen)
        # A graph has as many positions as its chunk has tokens, or more.
        seen = max(seen, tokens) if self._shapes.are_fixed else seen
        parts = [
            (each.slot, each.kept, each.ids[each.kept : each.kept + tokens]) for each in chosen
        ]
        logits = self._calls.prefill(parts, (rows, tokens), self._length(seen))
        complete = []
        for sequence, (_, _, ids) in zip(chosen, parts, strict=True):
            sequence.kept += len(ids)
            if not sequence.rest:
                complete.append(sequence)
        at = [row for row, sequence in enumerate(chosen) if not sequence.rest]
        self._sample(logits, at, complete)
        return complete

    def _decode(self, decoding: Sequence[RunningSequence]) -> None:
        """Make a token on the device for each of these."""
        slots = [sequence.slot for sequence in decoding]
        seen = self._length(max(len(sequence.ids) for sequence in decoding))
        if self._shapes.are_fixed or buckets.is_dense(slots):
            self._set_live(slots)
            rows = max(slots) + 1
            if self._shapes.are_fixed:
                rows = buckets.smallest(self._shapes.rows, rows)
            logits, at = self._calls.decode(rows, seen), slots
        else:
            parts = [(each.slot, each.kept, each.ids[-1:]) for each in decoding]
            logits = self._calls.prefill(parts, (len(parts), 1), seen)
            at = list(range(len(parts)))
        for sequence in decoding:
            sequence.kept += 1
        self._sample(logits, at, decoding)

    def _length(self, seen: int) -> int:
        return buckets.smallest(self._shapes.lengths, seen) if self._shapes.lengths else seen
