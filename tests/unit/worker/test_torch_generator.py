"""A generator of torch: its methods are called without gradients, and it may return tensors."""

from __future__ import annotations

from collections.abc import Sequence

import batchpool as bp
from tests.lazy import library
from tests.unit.worker.sequence_bench import SequenceBench
from tests.unit.worker.toy_generator import Toy, tokens_of

torch = library("torch")


class TorchToy(Toy):
    framework = "torch"

    def join(self, sequences: Sequence[bp.JoiningSequence]) -> None:  # type: ignore[override]
        assert torch.is_inference_mode_enabled()
        super().join(sequences)

    def step(self) -> bp.StepTokens:
        assert torch.is_inference_mode_enabled()
        found = super().step()
        numbers, tokens = torch.as_tensor(found.numbers), torch.as_tensor(found.tokens)
        return bp.StepTokens(numbers, tokens, torch.ones_like(numbers), torch.tensor(found.stopped))

    def leave(self, numbers: Sequence[int]) -> None:
        assert torch.is_inference_mode_enabled()
        super().leave(numbers)


def test_tensors_are_taken_as_arrays_are() -> None:
    bench = SequenceBench(TorchToy())
    bench.fill(1, 0, [1, 2], 5)
    bench.fill(4, 0, [3], 5, stop_at=2)
    bench.send(1, 0)
    bench.send(4, 0)
    bench.run()
    assert bench.tokens(1, 0) == tokens_of([1, 2], 5)
    assert bench.tokens(4, 0) == tokens_of([3], 2)
    assert not torch.is_inference_mode_enabled()
