"""The library's own ways: static batches of `generate`, and its continuous batching."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.generate.answers import Answer
from bench.generate.loads import Load, Request

_POLL_S = 0.01


def loaded(folder: Path, device: str) -> Any:
    """The model, in the precision that CausalLM has on this device."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    model: Any = AutoModelForCausalLM.from_pretrained(str(folder), dtype=dtype)
    model.generation_config.eos_token_id = None  # all tokens that are asked for
    model.generation_config.pad_token_id = 0
    return model.to(device).eval()


class Static:
    """Batches of `generate` in the order of the load, each as long as its longest row."""

    def __init__(self, folder: Path, device: str, slots: int, options: dict[str, Any]) -> None:
        self._model, self._device, self._slots = loaded(folder, device), device, slots

    def run(self, load: Load) -> list[Answer]:
        if load.due_s or load.at_once:
            raise SystemExit("static batches know no arrivals: leave out --rate and --at-once")
        begun_s = time.perf_counter()
        answers = []
        for first in range(0, len(load.requests), self._slots):
            batch = load.requests[first : first + self._slots]
            rows = self._generated(batch)
            now_s = time.perf_counter()
            for request, row in zip(batch, rows, strict=True):
                answers.append(Answer(begun_s))
                answers[-1].add(row[: request.tokens], now_s)
        return answers

    def _generated(self, batch: Sequence[Request]) -> list[list[int]]:
        import torch

        longest = max(len(request.prompt) for request in batch)
        ids = torch.zeros((len(batch), longest), dtype=torch.int64)
        mask = torch.zeros_like(ids)
        for row, request in enumerate(batch):
            ids[row, longest - len(request.prompt) :] = torch.tensor(request.prompt)
            mask[row, longest - len(request.prompt) :] = 1
        found = self._model.generate(
            ids.to(self._device),
            attention_mask=mask.to(self._device),
            max_new_tokens=max(request.tokens for request in batch),
            do_sample=False,
        )
        rows: list[list[int]] = found[:, longest:].tolist()
        return rows


class Library:
    """Continuous batching of transformers, with its defaults."""

    def __init__(self, folder: Path, device: str, slots: int, options: dict[str, Any]) -> None:
        from transformers import GenerationConfig

        settings = GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0)
        model = loaded(folder, device)
        self._engine: Any = model.init_continuous_batching(generation_config=settings)
        self._engine.start()
        self._served = 0

    def close(self) -> None:
        self._engine.stop(block=True)

    def run(self, load: Load) -> list[Answer]:
        engine, before = self._engine, self._served
        total, sent, done = len(load.requests), 0, 0
        answers: dict[int, Answer] = {}
        sent_s: list[float] = []
        begun_s = time.perf_counter()
        while done < total:
            now_s = time.perf_counter()
            while sent < total and load.may_send(sent, done, now_s - begun_s):
                request = load.requests[sent]
                engine.add_request(
                    request.prompt,
                    request_id=str(before + sent),
                    max_new_tokens=request.tokens,
                    record_timestamps=True,
                )
                sent_s.append(begun_s + load.due_s[sent] if load.due_s else now_s)
                sent += 1
            found = engine.get_result(timeout=_POLL_S)
            if found is None or not found.is_finished():
                continue
            if found.error:
                raise SystemExit(f"transformers lost request {found.request_id}: {found.error}")
            number = int(found.request_id) - before
            answers[number] = Answer(
                sent_s[number], list(found.generated_tokens), list(found.timestamps)
            )
            done += 1
        self._served += total
        return [answers[number] for number in range(total)]
