"""Calls as graphs, on a CPU: each shape is captured once, on memory that stays where it is."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from batchpool.model import make_instance
from batchpool.models.causal_lm import CausalLM
from tests.lazy import library
from tests.unit.models.decoder.late_device import LateDevice
from tests.unit.models.decoder_folders import LENGTH, Loop, llama, loaded, sequence

torch = library("torch")
slot_calls = library("batchpool.models.decoder.slot_calls")


class Captured(CausalLM):
    """Captures on a CPU: a replay runs the call again, on the tensors of the capture."""

    replayed: Counter[int]
    uncaptured: list[Any]

    def _capture(self, device: Any) -> Any:
        self.replayed, self.uncaptured = Counter(), []

        def capture(call: Any) -> Any:
            number = len(self.replayed)
            self.replayed[number] = 0

            def replay() -> None:
                self.replayed[number] += 1
                call()

            return replay

        return capture


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return llama(tmp_path_factory.mktemp("llama"), max_position_embeddings=1024)


def captured(folder: Path, sequences: int, **options: Any) -> Captured:
    model = make_instance(Captured, "m", {"path": folder, **options})
    assert isinstance(model, Captured)
    model.sequences = sequences
    model.load("cpu")
    return model


def test_captured_calls_give_the_tokens_of_those_that_are_not(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = [
        sequence(0, [1 + (at * 7 + place) % 90 for place in range(1 + at * 13 % 200)], 2 + at % 9)
        for at in range(30)
    ]
    wanted += [sequence(0, [5] * length, 12) for length in (250, 400, 540)]
    wanted.append(sequence(0, list(range(1, 90)), 20, temperature=0.8, seed=4))
    options = {"max_length": 600, "max_tokens": 300, "chunk_tokens": 64}
    expected = Loop(loaded(folder, 5, **options), wanted).run()
    model = captured(folder, 5, **options)
    # Decode calls of 1, 4 and 5 slots, chunks of 1 (64 and 16), 4 and 5 rows; 256, 512, 600 tokens.
    assert len(model.replayed) == (3 + 4) * 3
    monkeypatch.setattr(slot_calls, "HostTable", None)  # nothing is allocated any more
    assert Loop(model, wanted).run() == expected
    assert sum(model.replayed.values()) > 100
    assert len(+model.replayed) > 10


def test_the_rows_of_a_graph_that_are_not_live_change_nothing(folder: Path) -> None:
    """A slot whose prompt is half read, and one that has ended, are among those that decode."""
    model = captured(folder, 4, max_length=LENGTH, max_tokens=60, chunk_tokens=16)
    alone = Loop(loaded(folder, 1), [sequence(0, list(range(1, 60)), 10)]).run()[0]
    others = [sequence(0, [at], n) for at, n in ((1, 1), (2, 30), (3, 3))]
    found = Loop(model, [*others, sequence(0, list(range(1, 60)), 10)]).run()
    assert found[3] == alone


def test_parts_of_prompts_reach_a_device_that_is_behind(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While nothing but prompts is taken nobody waits for tokens."""
    wanted = [sequence(0, [1 + (at + place) % 90 for place in range(200)], 5) for at in range(3)]
    options = {"max_length": 600, "max_tokens": 300, "chunk_tokens": 16}
    expected = Loop(loaded(folder, 3, **options), wanted).run()
    model = captured(folder, 3, **options)
    LateDevice(monkeypatch)
    assert Loop(model, wanted).run() == expected
