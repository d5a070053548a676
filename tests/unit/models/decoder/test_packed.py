"""Prompts and tokens in a single row give the tokens of the library, in one call a step."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from batchpool.model import make_instance
from batchpool.models.causal_lm import CausalLM
from tests.lazy import library
from tests.unit.models.decoder.late_device import LateDevice
from tests.unit.models.decoder.plain_attention import plain_attention
from tests.unit.models.decoder_folders import (
    LENGTH,
    VOCABULARY,
    Loop,
    gpt2,
    gpt_neox,
    llama,
    sequence,
)

torch = library("torch")
transformers = library("transformers")
packed_engine = library("batchpool.models.decoder.packed_engine")
packed_calls = library("batchpool.models.decoder.packed_calls")

KINDS = {"llama": llama, "gpt_neox": gpt_neox, "gpt2": gpt2}


class Packed(CausalLM):
    """As on a GPU, on a CPU. captured: its calls are recorded, and so their shapes are fixed."""

    attention: Any = staticmethod(plain_attention)
    captured: list[Callable[[], None]] | None = None

    def _attention(self, device: Any, dtype: Any) -> Any:
        return self.attention

    def _capture(self, device: Any) -> Any:
        def capture(call: Callable[[], None]) -> Callable[[], None]:
            call()
            assert self.captured is not None
            self.captured.append(call)
            return call

        return None if self.captured is None else capture


def packed(folder: Path, sequences: int, captured: bool = False, **options: Any) -> Packed:
    values = {"path": folder, "max_length": LENGTH, "max_tokens": LENGTH - 1, **options}
    model = make_instance(Packed, "m", values)
    assert isinstance(model, Packed)
    model.captured = [] if captured else None
    model.sequences = sequences
    model.load("cpu")
    assert isinstance(model._engine, packed_engine.PackedEngine)
    return model


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return cache(lambda kind: KINDS[kind](tmp_path_factory.mktemp(kind)))


def wanted_of(n: int, longest: int = 40) -> list[tuple[list[int], int]]:
    draw = random.Random(7)
    return [
        ([draw.randrange(1, VOCABULARY) for _ in range(draw.randint(1, longest))],
         draw.randint(1, 20))
        for _ in range(n)
    ]  # fmt: skip


def assert_likeliest(folder: Path, prompt: list[int], tokens: list[int]) -> None:
    """Each of the tokens has the largest logit behind those before it, by the library's model."""
    with torch.inference_mode():
        logits = reference(folder)(torch.tensor([[*prompt, *tokens]])).logits[0]
    assert logits[len(prompt) - 1 : -1].argmax(-1).tolist() == tokens


@cache
def reference(folder: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(str(folder))


@pytest.mark.parametrize(
    ("kind", "captured"),
    [("llama", False), ("llama", True), ("gpt_neox", True), ("gpt2", False)],
)
def test_sequences_that_join_and_leave_have_the_likeliest_tokens(
    folders: Any, kind: str, captured: bool
) -> None:
    folder, wanted = folders(kind), wanted_of(20)
    model = packed(folder, 7, captured, chunk_tokens=48)
    found = Loop(model, [sequence(0, *each) for each in wanted]).run()
    for place, (prompt, tokens) in enumerate(wanted):
        assert len(found[place]) == tokens
        assert_likeliest(folder, prompt, found[place])
    if captured:  # 1, 4 and 7 slots and none, with 32 and 48 tokens of prompts and without
        assert model.captured is not None
        assert len(model.captured) == 4 * 3 - 1


def test_a_step_is_one_call_of_the_model(folders: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[int, int]] = []
    before = packed_calls.PackedCalls._call

    def counted(self: Any, rows: int, prompts: Any) -> None:
        calls.append((rows, prompts.tokens if prompts else 0))
        before(self, rows, prompts)

    model = packed(folders("llama"), 4, chunk_tokens=64)
    monkeypatch.setattr(packed_calls.PackedCalls, "_call", counted)
    loop = Loop(model, [sequence(0, [3] * 5, 9), sequence(0, [4] * 90, 4), sequence(0, [5], 6)])
    for _ in range(4):
        loop.step()
    assert calls == [(0, 64), (1, 32), (4, 0), (4, 0)]
    assert [len(loop.tokens[place]) for place in range(3)] == [4, 3, 3]


def test_a_sampled_sequence_has_its_tokens_in_any_company(folders: Any) -> None:
    drawn = sequence(0, [9, 8, 7], 30, temperature=1.0, top_k=20, top_p=0.9, seed=5)
    alone = Loop(packed(folders("llama"), 1), [drawn]).run()[0]
    others = [sequence(0, *each) for each in wanted_of(12)]
    model = packed(folders("llama"), 5, chunk_tokens=16)
    found = Loop(model, [*others[:6], drawn, *others[6:]]).run()
    assert found[6] == alone
    assert_likeliest(folders("llama"), *wanted_of(12)[0][:1], found[0])


def test_a_call_ahead_makes_no_token_for_those_that_have_ended(folders: Any) -> None:
    """By a token that the host had not seen when the next call was launched, by their number of
    tokens, and by leaving; their slots are used again."""
    folder = folders("llama")
    (whole,) = Loop(packed(folder, 1), [sequence(0, [3, 4, 5], 20)]).run().values()
    end = whole[6]
    until = whole[: whole.index(end) + 1]
    model = packed(folder, 2, captured=True, stop_ids=[end])
    wanted = [sequence(0, [3, 4, 5], 20), sequence(0, [9], 3, ignore_eos=True),
              sequence(0, [3, 4, 5], 20, ignore_eos=True)]  # fmt: skip
    loop = Loop(model, wanted)
    found = loop.run()
    assert (found[0], loop.stopped) == (until, {0})
    assert_likeliest(folder, [9], found[1])
    assert found[2] == whole
    model.join([sequence(0, list(range(1, 40)), 30)])
    for _ in range(4):
        model.step()
    model.leave([0])  # with a call under way
    assert Loop(model, wanted[2:]).run() == {0: whole}


def test_a_sequence_that_has_its_tokens_is_in_no_further_call(
    folders: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = packed(folders("llama"), 1, captured=True)
    calls = []
    before = packed_calls.PackedCalls.run

    def counted(self: Any, rows: int, parts: Any, tokens: int) -> Any:
        calls.append((rows, len(parts)))
        return before(self, rows, parts, tokens)

    monkeypatch.setattr(packed_calls.PackedCalls, "run", counted)
    loop = Loop(model, [sequence(0, [3, 4], 3)])
    assert len(loop.run()[0]) == 3
    assert calls == [(0, 1), (1, 0), (1, 0)]


def test_more_prompts_than_a_call_takes_wait_in_their_order(folders: Any) -> None:
    n = packed_calls.PROMPTS + 3
    model = packed(folders("llama"), n, chunk_tokens=64)
    loop = Loop(model, [sequence(0, [5 + at], 3) for at in range(n)])
    loop.step()
    assert sorted(place for place, tokens in loop.tokens.items() if tokens) == list(range(n - 3))
    loop.step()
    assert all(loop.tokens.values())


def test_where_its_logits_differ_a_model_takes_two_calls(folders: Any) -> None:
    """Attention that sees no key but the first ones, as a kernel would that ignores `kept`."""

    def forgets(query: Any, key: Any, value: Any, segments: Any, scale: float) -> Any:
        return plain_attention(query, key * 0, value, segments, scale)

    model = make_instance(Packed, "m", {"path": folders("llama"), "max_length": LENGTH})
    assert isinstance(model, Packed)
    model.attention = forgets
    model.sequences = 4
    model.load("cpu")
    assert not isinstance(model._engine, packed_engine.PackedEngine)
    found = Loop(model, [sequence(0, [3, 4, 5], 9)]).run()
    assert_likeliest(folders("llama"), [3, 4, 5], found[0])


def test_logits_that_are_no_numbers_end_their_step_and_leave_a_clean_slot(folders: Any) -> None:
    model = packed(folders("llama"), 2)
    model.join([sequence(0, [3, 4], 9)])
    model.step()
    engine: Any = model._engine
    with torch.inference_mode():
        for kept in engine._calls._cache._values:
            kept[:LENGTH] = torch.inf  # of slot 0
    with pytest.raises(FloatingPointError, match="1 of 1 sequences"):
        model.step()
    model.leave([0])
    found = Loop(model, [sequence(0, [3, 4, 5], 9)]).run()
    assert_likeliest(folders("llama"), [3, 4, 5], found[0])


def test_parts_of_prompts_reach_a_device_that_is_behind(
    folders: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While nothing but prompts is taken nobody waits for tokens."""
    wanted = [sequence(0, [1 + (at + place) % 90 for place in range(80)], 5) for at in range(3)]
    expected = Loop(packed(folders("llama"), 3, True, chunk_tokens=8), wanted).run()
    model = packed(folders("llama"), 3, True, chunk_tokens=8)
    LateDevice(monkeypatch)
    assert Loop(model, wanted).run() == expected
