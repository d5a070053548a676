"""Generators for the tests of real processes: numpy, whose tokens follow from the prompt."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

import batchpool as bp

MOST = 20_000  # tokens: a stream of so many is under way until somebody ends it


class Counting(bp.Generator):
    """Tokens count up from the prompt's last element, and end by themselves at a full hundred
    where the prompt begins with 1."""

    framework = "numpy"
    prompt = bp.Tensor("prompt", "int32", (bp.Dim(max=8),))
    max_tokens = MOST

    def __init__(self) -> None:
        self._last: dict[int, int] = {}
        self._stops: set[int] = set()

    def join(self, sequences: Sequence[bp.JoiningSequence]) -> None:
        for sequence in sequences:
            known = sequence.tokens if len(sequence.tokens) else sequence.prompt
            self._last[sequence.number] = int(known[-1])
            if sequence.prompt[0] == 1:
                self._stops.add(sequence.number)

    def step(self) -> bp.StepTokens:
        time.sleep(0.001)  # as if a device worked, so that others get the processor
        numbers = list(self._last)
        for number in numbers:
            self._last[number] += 1
        tokens = np.array([self._last[number] for number in numbers], np.int32)
        stopped = [n for n in numbers if n in self._stops and self._last[n] % 100 == 0]
        return bp.StepTokens(numbers, tokens, stopped=stopped)

    def leave(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            del self._last[number]
            self._stops.discard(number)
