"""Answers of an engine, with the times at which their tokens came, and the figures of a run."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.support.machine import percentile


@dataclass
class Answer:
    """tokens: of one request. sent_s: when it was sent. came_s: when each token was there; both by
    time.perf_counter."""

    sent_s: float
    tokens: list[int] = field(default_factory=list)
    came_s: list[float] = field(default_factory=list)

    def add(self, tokens: Sequence[int], at_s: float) -> None:
        self.tokens += tokens
        self.came_s += [at_s] * len(tokens)


def figures(answers: Sequence[Answer]) -> dict[str, float]:
    """The figures of one run."""
    begun_s = min(answer.sent_s for answer in answers)
    ended_s = max(answer.came_s[-1] for answer in answers)
    first = [answer.came_s[0] - answer.sent_s for answer in answers]
    gaps = [b - a for each in answers for a, b in zip(each.came_s, each.came_s[1:], strict=False)]
    tokens = sum(len(answer.tokens) for answer in answers)
    return {
        "tokens/s": tokens / (ended_s - begun_s),
        "first p50 ms": statistics.median(first) * 1e3,
        "first p99 ms": percentile(first, 0.99) * 1e3,
        "gap p50 ms": statistics.median(gaps) * 1e3,
        "gap p99 ms": percentile(gaps, 0.99) * 1e3,
    }


def equal(answers: Sequence[Answer], expected: Sequence[Answer]) -> int:
    """The number of answers with the tokens of the expected ones."""
    return sum(a.tokens == b.tokens for a, b in zip(answers, expected, strict=True))
