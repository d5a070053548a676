"""A generator for the tests of whole pools: its tokens are a function of the prompt and the place,
so that one that is lost or made twice shows."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence

import batchpool as bp
from tests.process.models import note

GATE_AT = 5  # tokens that a sequence makes before its gate
KILLER = 666  # a prompt of this ends the worker at its gate
TOKENS_MOST = 64


def token_of(prompt: Sequence[int], place: int) -> int:
    """The token of a prompt at a place, counted from 0."""
    return (sum(prompt) * 31 + len(prompt) * 7 + place * 131 + 5) % 9973


def tokens_of(prompt: Sequence[int], n: int) -> list[int]:
    """The first n tokens of a prompt."""
    return [token_of(prompt, place) for place in range(n)]


class Story(bp.Generator):
    """A prompt begins with the number of its gate: behind GATE_AT tokens it makes none until the
    test leaves the note `gate-N`; 0 for no gate. Each that comes to its gate adds the worker's pid
    to the note `at-N`; each that leaves before it is done, to the note `left-N`."""

    framework = "numpy"
    prompt = bp.Tensor("prompt", "int32", (bp.Dim(max=16),))
    max_tokens = TOKENS_MOST

    def load(self, device: str) -> None:
        self.running: dict[int, tuple[list[int], int, int]] = {}
        self.waiting: set[int] = set()

    def join(self, sequences: Sequence[bp.JoiningSequence]) -> None:
        for s in sequences:
            prompt = s.prompt.tolist()
            assert s.tokens.tolist() == tokens_of(prompt, len(s.tokens)), "a token was lost"
            self.running[s.number] = prompt, len(s.tokens), s.max_tokens

    def step(self) -> bp.StepTokens:
        numbers, tokens = [], []
        for number, (prompt, place, most) in self.running.items():
            if place == GATE_AT and self._is_held(number, prompt):
                continue
            numbers.append(number)
            tokens.append(token_of(prompt, place))
            self.running[number] = prompt, place + 1, most
        if not numbers:
            time.sleep(0.002)
        return bp.StepTokens(numbers, tokens)

    def _is_held(self, number: int, prompt: list[int]) -> bool:
        gate = prompt[0] if prompt else 0
        if gate == KILLER:
            _add_line(f"at-{gate}")
            os.kill(os.getpid(), signal.SIGKILL)
        if gate and not note(f"gate-{gate}").exists():
            if number not in self.waiting:
                self.waiting.add(number)
                _add_line(f"at-{gate}")
            return True
        self.waiting.discard(number)
        return False

    def leave(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self.waiting.discard(number)
            prompt, place, most = self.running.pop(number)
            if place < most and prompt[0]:
                _add_line(f"left-{prompt[0]}")


def _add_line(name: str) -> None:
    with note(name).open("a") as stream:
        stream.write(f"{os.getpid()}\n")
