"""A generator of letters, whose tokens are those of the tests' byte-level tokenizer."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass

import batchpool as bp
from tests.process.models import first_time, note

A, Z = 66, 91  # tokens of "a" and "z"; those of letters follow one another
KILL, WAIT = 44, 56  # tokens of "K" and "W", which a prompt begins with


@dataclass
class _Row:
    first: int
    last: int
    made: int


class Letters(bp.Generator):
    """Goes on with the alphabet behind the last letter of the prompt, and stops at "z".

    "K..." kills the worker at its fourth letter, once; "W..." makes no letter before the note "go".
    """

    framework = "numpy"
    prompt = bp.Tensor("prompt", "int32", (bp.Dim(max=256),))
    max_tokens = 64
    parameters = [bp.Tensor("temperature", "float32", default=0.0)]

    def __init__(self, tokenizer: str) -> None:
        self.text = bp.Text(tokenizer, "{{ messages[-1]['content'] }}")
        self._rows: dict[int, _Row] = {}

    def join(self, sequences: Sequence[bp.JoiningSequence]) -> None:
        for each in sequences:
            last = each.tokens[-1] if len(each.tokens) else each.prompt[-1]
            self._rows[each.number] = _Row(int(each.prompt[0]), int(last), len(each.tokens))

    def step(self) -> bp.StepTokens:
        numbers = [
            number for number, row in self._rows.items() if row.first != WAIT or note("go").exists()
        ]
        for number in numbers:
            row = self._rows[number]
            row.last, row.made = A + max(0, row.last + 1 - A) % 26, row.made + 1
            if row.first == KILL and row.made == 4 and first_time("killed"):
                os.kill(os.getpid(), signal.SIGKILL)
        tokens = [self._rows[number].last for number in numbers]
        stopped = [number for number in numbers if self._rows[number].last == Z]
        return bp.StepTokens(numbers, tokens, stopped=stopped)

    def leave(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self._rows.pop(number)
