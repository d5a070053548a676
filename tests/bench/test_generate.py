"""The benchmark of generation: its loads, its figures, and its loop without a pool."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.generate.answers import Answer, equal, figures
from bench.generate.loads import Load, Request, arrivals, mixed, nano
from tests.lazy import library
from tests.unit.models.decoder_folders import VOCABULARY, llama

bare = library("bench.generate.bare")
torch = library("torch")


def test_the_loads_have_the_lengths_that_they_say() -> None:
    requests = mixed(256, 151_936)
    assert min(len(each.prompt) for each in requests) >= 16
    assert max(len(each.prompt) for each in requests) == 512
    assert 95 < sum(each.tokens for each in requests) / 256 < 115
    requests = nano(256, 151_936)
    assert all(100 <= len(each.prompt) <= 1024 and 100 <= each.tokens <= 1024 for each in requests)
    assert all(1519 <= token < 151_936 for each in requests for token in each.prompt)
    assert max(each.tokens for each in nano(50, 500, 8)) <= 128


def test_requests_are_due_in_a_closed_and_in_an_open_loop() -> None:
    closed = Load([Request([1], 1)] * 4, at_once=2)
    assert [closed.may_send(number, 0, 0.0) for number in (0, 1, 2)] == [True, True, False]
    assert closed.may_send(2, 1, 0.0)
    assert Load([]).may_send(99, 0, 0.0)
    due_s = arrivals(1000, 50.0)
    assert due_s == tuple(sorted(due_s))
    assert due_s[-1] == pytest.approx(20, rel=0.2)
    opened = Load([], due_s=due_s)
    assert not opened.may_send(1, 99, due_s[0])
    assert opened.may_send(1, 0, due_s[1])


def test_figures_are_of_first_tokens_gaps_and_the_whole() -> None:
    one = Answer(0.0, [1, 2, 3], [1.0, 1.5, 1.5])
    other = Answer(1.0, [4, 5], [2.0, 4.0])
    found = figures([one, other])
    assert found["tokens/s"] == 5 / 4
    assert found["first p50 ms"] == 1000
    assert (found["gap p50 ms"], found["gap p99 ms"]) == (500, 2000)
    assert equal([one, other], [one, Answer(0.0, [4, 6])]) == 1


@pytest.mark.parametrize("at_once", [0, 3])
def test_the_loop_without_a_pool_answers_every_request(tmp_path: Path, at_once: int) -> None:
    requests = [Request([1 + at, 2], 1 + at % 5) for at in range(12)]
    load = Load(requests, at_once)
    assert max(max(each.prompt) for each in requests) < VOCABULARY
    answers = bare.Bare(llama(tmp_path), "cpu", 4, bare.options_of(load)).run(load)
    assert [len(answer.tokens) for answer in answers] == [each.tokens for each in requests]
    assert all(answer.came_s == sorted(answer.came_s) for answer in answers)
