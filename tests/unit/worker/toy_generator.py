"""A generator whose tokens are a function of the prompt and the place, so that one that is lost or
made twice shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import batchpool as bp

PROMPT_MOST, TOKENS_MOST = 16, 40


def token_of(prompt: Sequence[int], place: int) -> int:
    """The token of a prompt at a place, counted from 0."""
    return (sum(prompt) * 31 + len(prompt) * 7 + place * 131 + 5) % 9973


def tokens_of(prompt: Sequence[int], n: int) -> list[int]:
    """The first n tokens of a prompt."""
    return [token_of(prompt, place) for place in range(n)]


class Toy(bp.Generator):
    """Every sequence makes a token in each step, and stops behind `stop_at` tokens where a request
    says so (0: never). log: the calls, in order."""

    prompt = bp.Tensor("prompt", "int32", (bp.Dim(max=PROMPT_MOST),))
    token = bp.Tensor("token", "int32")
    max_tokens = TOKENS_MOST
    parameters = [bp.Tensor("stop_at", "int32", default=0)]
    framework = "numpy"

    def __init__(self) -> None:
        self.running: dict[int, tuple[list[int], int, int]] = {}
        self.log: list[Any] = []

    def load(self, device: str) -> None:
        self.log.append(("load", device, self.sequences))

    def join(self, sequences: Sequence[bp.JoiningSequence]) -> Mapping[int, Exception] | None:
        self.log.append(("join", [s.number for s in sequences]))
        for s in sequences:
            assert s.number not in self.running
            prompt = s.prompt.tolist()
            assert s.tokens.tolist() == tokens_of(prompt, len(s.tokens))
            assert len(s.tokens) < s.max_tokens
            self.running[s.number] = prompt, len(s.tokens), s.parameters["stop_at"]
        return None

    def step(self) -> bp.StepTokens:
        numbers = sorted(self.running)
        tokens, stopped = [], []
        for number in numbers:
            prompt, place, stop_at = self.running[number]
            tokens.append(token_of(prompt, place))
            self.running[number] = prompt, place + 1, stop_at
            if place + 1 == stop_at:
                stopped.append(number)
        return bp.StepTokens(np.array(numbers), np.array(tokens), stopped=stopped)

    def leave(self, numbers: Sequence[int]) -> None:
        self.log.append(("leave", sorted(numbers)))
        for number in numbers:
            self.running.pop(number, None)
