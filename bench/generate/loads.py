"""Requests of mixed lengths, and when they are sent."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

_LONG_ANSWER = 16  # tokens


@dataclass(frozen=True)
class Request:
    """prompt: its tokens. tokens: how many are wanted. sampled: by a temperature, top-k and top-p;
    else the likeliest."""

    prompt: list[int]
    tokens: int
    sampled: bool = False

    @property
    def parameters(self) -> dict[str, Any]:
        greedy = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "seed": -1}
        drawn = {"temperature": 0.8, "top_k": 50, "top_p": 0.95, "seed": 1}
        return {**(drawn if self.sampled else greedy), "ignore_eos": True}


@dataclass(frozen=True)
class Load:
    """requests: in the order in which they are sent. at_once: a closed loop of so many under way,
    0 for all of them. due_s: an open loop, when each is sent after the start; () for a closed one.
    """

    requests: list[Request]
    at_once: int = 0
    due_s: tuple[float, ...] = ()

    @property
    def longest(self) -> int:
        """The most tokens of a sequence, its prompt among them."""
        return max(len(each.prompt) + each.tokens for each in self.requests)

    @property
    def most_tokens(self) -> int:
        return max(each.tokens for each in self.requests)

    def may_send(self, number: int, done: int, since_s: float) -> bool:
        """True when request `number` is due. done: the requests that are answered. since_s: since
        the start."""
        if self.due_s:
            return since_s >= self.due_s[number]
        return not self.at_once or number - done < self.at_once


def mixed(n: int, vocabulary: int, shorten: int = 1) -> list[Request]:
    """Prompts of 16 to 512 tokens and 8 to 384 new ones, both log-normal: many short, few long.

    shorten: lengths are divided by it.
    """
    draw = random.Random(1)

    def length(mean: float, deviation: float, least: int, most: int) -> int:
        return max(1, int(min(most, max(least, draw.lognormvariate(mean, deviation)))) // shorten)

    return [
        Request(_tokens(draw, length(4.6, 0.8, 16, 512), vocabulary), length(4.3, 0.9, 8, 384))
        for _ in range(n)
    ]


def nano(n: int, vocabulary: int, shorten: int = 1) -> list[Request]:
    """Prompts and answers of 100 to 1,024 tokens, evenly, as in the benchmark of nano-vllm."""
    draw = random.Random(0)
    least, most = max(1, 100 // shorten), 1024 // shorten
    return [
        Request(_tokens(draw, draw.randint(least, most), vocabulary), draw.randint(least, most))
        for _ in range(n)
    ]


def _tokens(draw: random.Random, n: int, vocabulary: int) -> list[int]:
    return [draw.randrange(vocabulary // 100, vocabulary) for _ in range(n)]


def arrivals(n: int, rate: float) -> tuple[float, ...]:
    """Seconds after the start at which n requests are sent, `rate` of them a second (Poisson)."""
    draw = random.Random(2)
    at, found = 0.0, []
    for _ in range(n):
        at += draw.expovariate(rate)
        found.append(at)
    return tuple(found)


def with_long_prompts(load: Load, vocabulary: int, tokens: int) -> Load:
    """An open loop with a prompt of so many tokens besides, once a second."""
    draw = random.Random(3)
    seconds = range(1, int(load.due_s[-1]) + 1)
    long = [Request(_tokens(draw, tokens, vocabulary), _LONG_ANSWER) for _ in seconds]
    both = zip([*load.due_s, *map(float, seconds)], [*load.requests, *long], strict=True)
    due_s, requests = zip(*sorted(both, key=lambda each: each[0]), strict=True)
    return Load(list(requests), 0, due_s)
