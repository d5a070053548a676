"""A generator that makes a token for each sequence at even times, and notes when a step began."""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import batchpool as bp

MOST_STEPS = 1 << 18
MOST_TOKENS = 1 << 16
_COLUMNS = 2


class Paced(bp.Generator):
    """Counts the tokens of each sequence from 0. step_ms: from one step to the next. notes: a file
    for `step_notes`, "" for none."""

    framework = "numpy"
    prompt = bp.Tensor("prompt", "int32", (bp.Dim(max=16),))
    max_tokens = MOST_TOKENS

    def __init__(self, step_ms: float = 2.0, notes: str = "") -> None:
        self._step_ns, self._due_ns, self._steps = int(step_ms * 1e6), 0, 0
        self._notes = step_notes(Path(notes)) if notes else None
        self._made: dict[int, int] = {}

    def join(self, sequences: Sequence[bp.JoiningSequence]) -> None:
        self._made |= {each.number: len(each.tokens) for each in sequences}

    def step(self) -> bp.StepTokens:
        now_ns = time.monotonic_ns()
        if now_ns < self._due_ns:
            time.sleep((self._due_ns - now_ns) / 1e9)
            now_ns = time.monotonic_ns()
        self._due_ns = max(self._due_ns + self._step_ns, now_ns)
        if self._notes is not None and self._steps < MOST_STEPS:
            self._notes[self._steps] = now_ns, waited_ns()
        self._steps += 1
        made = self._made
        tokens = list(made.values())
        for number in made:
            made[number] += 1
        return bp.StepTokens(list(made), tokens)

    def leave(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            del self._made[number]


def waited_ns(pid: int | str = "self") -> int:
    """The time, ns, that the first thread of a process has waited for a core since its start."""
    with open(f"/proc/{pid}/schedstat", "rb") as stream:
        return int(stream.read().split()[1])


def step_notes(path: Path) -> npt.NDArray[np.int64]:
    """The notes in a file, which is made if it is not there: of each step the time at which it
    began (CLOCK_MONOTONIC ns) and `waited_ns` then; 0 for steps that are yet to come."""
    size = MOST_STEPS * _COLUMNS * 8
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.ftruncate(fd, size)
        mapped: Any = mmap.mmap(fd, size)
    finally:
        os.close(fd)
    return np.frombuffer(mapped, np.int64).reshape(MOST_STEPS, _COLUMNS)
