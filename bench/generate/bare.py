"""CausalLM in a loop of its own: the engine without a pool around it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

import batchpool as bp
from batchpool.models.causal_lm import CausalLM
from bench.generate.answers import Answer
from bench.generate.loads import Load, Request


def options_of(load: Load, **more: Any) -> dict[str, Any]:
    """The options of CausalLM that a load needs, and more of them."""
    return {"max_length": load.longest, "max_tokens": load.most_tokens, **more}


class Bare:
    """The loaded model; `run` serves a load."""

    def __init__(self, folder: Path, device: str, slots: int, options: dict[str, Any]) -> None:
        self._model = CausalLM(folder, **options)
        self._model.sequences = slots
        self._model.load(device)

    def run(self, load: Load) -> list[Answer]:
        model, total = self._model, len(load.requests)
        answers: list[Answer] = []
        running: dict[int, int] = {}  # request by number of the sequence
        free = list(range(model.sequences))[::-1]
        done = joined = 0
        begun_s = time.perf_counter()
        while done < total:
            now_s = time.perf_counter()
            while len(answers) < total and load.may_send(len(answers), done, now_s - begun_s):
                due_s = begun_s + load.due_s[len(answers)] if load.due_s else now_s
                answers.append(Answer(due_s))
            joining = []
            while free and joined < len(answers):
                joining.append(_sequence(free.pop(), load.requests[joined]))
                running[joining[-1].number] = joined
                joined += 1
            if joining and model.join(joining):
                raise SystemExit("a request was refused")
            if not running:
                time.sleep(0.001)  # an open loop with nothing to do
                continue
            made = model.step()
            now_s = time.perf_counter()
            ended = []
            for number, token in zip(made.numbers, made.tokens.tolist(), strict=True):
                answer = answers[running[number]]
                answer.add([token], now_s)
                if len(answer.tokens) == load.requests[running[number]].tokens:
                    ended.append(number)
            model.leave(ended)
            for number in ended:
                del running[number]
            free += ended
            done += len(ended)
        return answers


def _sequence(number: int, request: Request) -> bp.JoiningSequence:
    none = np.zeros(0, np.int32)
    return bp.JoiningSequence(
        number, np.array(request.prompt, np.int32), none, request.tokens, request.parameters
    )
