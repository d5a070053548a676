"""A decoder in slots gives the tokens of the library's `generate`, whatever joins and leaves."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import batchpool as bp
from tests.lazy import library
from tests.unit.models.decoder_folders import (
    LENGTH,
    VOCABULARY,
    Loop,
    gpt2,
    gpt_neox,
    llama,
    loaded,
    sequence,
)
from tests.unit.models.files.written_over import write_over

transformers = library("transformers")
torch = library("torch")

KINDS = {"llama": llama, "gpt_neox": gpt_neox, "gpt2": gpt2}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return cache(lambda kind: KINDS[kind](tmp_path_factory.mktemp(kind)))


def prompts(n: int, longest: int = 40, seed: int = 0) -> list[list[int]]:
    draw = random.Random(seed)
    return [
        [draw.randrange(1, VOCABULARY) for _ in range(draw.randint(1, longest))] for _ in range(n)
    ]


def generated(folder: Path, prompt: list[int], tokens: int, **settings: Any) -> list[int]:
    model = reference(folder)
    given = torch.tensor([prompt])
    found = model.generate(
        given, attention_mask=torch.ones_like(given), max_new_tokens=tokens, do_sample=False,
        pad_token_id=0, **settings,
    )  # fmt: skip
    return found[0, len(prompt) :].tolist()


def are_likeliest(folder: Path, prompt: list[int], tokens: list[int]) -> bool:
    """Each of the tokens is the one with the largest logit behind those before it: one call of the
    model for what `generate` needs one a token."""
    with torch.inference_mode():
        logits = reference(folder)(torch.tensor([[*prompt, *tokens]])).logits[0]
    return bool(logits[len(prompt) - 1 : -1].argmax(-1).tolist() == tokens)


@cache
def reference(folder: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(str(folder))


SEQUENCES = [
    *(("llama", 30), ("gpt_neox", 20), ("gpt2", 20)),
    pytest.param("llama", 200, marks=pytest.mark.long),
]


@pytest.mark.parametrize(("kind", "n"), SEQUENCES)
def test_sequences_that_join_and_leave_have_the_tokens_of_generate(
    folders: Any, kind: str, n: int
) -> None:
    folder = folders(kind)
    model = loaded(folder, 16, chunk_tokens=32)
    draw = random.Random(1)
    wanted = [(prompt, draw.randint(1, 20)) for prompt in prompts(n)]
    loop = Loop(model, [sequence(0, prompt, tokens) for prompt, tokens in wanted])
    found = loop.run()
    for place, (prompt, tokens) in enumerate(wanted):
        assert len(found[place]) == tokens
        assert are_likeliest(folder, prompt, found[place]), place
    for place in range(0, n, max(n // 5, 1)):
        assert found[place] == generated(folder, *wanted[place])
    assert loop.steps < sum(tokens for _, tokens in wanted) / 2


def test_tokens_do_not_change_with_a_file_that_is_written_over(tmp_path: Path) -> None:
    folder = llama(tmp_path / "llama")
    (prompt,) = prompts(1, seed=5)
    expected = generated(folder, prompt, 20)
    model = loaded(folder, 2)
    write_over(folder / "model.safetensors")
    assert Loop(model, [sequence(0, prompt, 20)]).run()[0] == expected


@pytest.mark.parametrize("made", [1, 7, 19])
def test_a_sequence_goes_on_behind_any_number_of_tokens(folders: Any, made: int) -> None:
    folder = folders("llama")
    (prompt,) = prompts(1, seed=5)
    whole = generated(folder, prompt, 20)
    resumed = sequence(0, prompt, 20, whole[:made])
    others = [sequence(0, each, 9) for each in prompts(3, seed=6)]
    found = Loop(loaded(folder, 2), [*others[:1], resumed, *others[1:]]).run()
    assert found[1] == whole[made:]


def test_a_long_prompt_holds_others_up_by_one_chunk_a_step(folders: Any) -> None:
    folder = folders("llama")
    short, long = [5, 6], list(range(1, 81))
    model = loaded(folder, 2, chunk_tokens=16)
    loop = Loop(model, [sequence(0, short, 12), sequence(0, long, 4)])
    for _ in range(5):
        loop.step()
        assert loop.tokens[1] == []
    assert len(loop.tokens[0]) == 5  # a token in every step
    found = loop.run()
    assert found[0] == generated(folder, short, 12)
    assert found[1] == generated(folder, long, 4)


def test_a_slot_is_used_again_after_a_sequence_was_cancelled(folders: Any) -> None:
    folder = folders("llama")
    model = loaded(folder, 1, chunk_tokens=16)
    model.join([sequence(0, list(range(1, 60)), 30)])
    model.step()
    model.leave([0])  # in the middle of its prompt
    model.join([sequence(0, [9, 8, 7], 30)])
    for _ in range(3):
        model.step()
    model.leave([0])
    model.leave([0])  # of one that has left already
    found = Loop(model, [sequence(0, [4, 5], 20)]).run()
    assert found[0] == generated(folder, [4, 5], 20)


def test_the_end_token_stops_a_sequence_unless_it_is_ignored(folders: Any) -> None:
    folder = folders("llama")
    whole = generated(folder, [3, 4, 5], 20)
    end = whole[6]
    until = whole[: whole.index(end) + 1]
    model = loaded(folder, 2, stop_ids=[end])
    loop = Loop(model, [sequence(0, [3, 4, 5], 20), sequence(0, [3, 4, 5], 20, ignore_eos=True)])
    assert loop.run() == {0: until, 1: whole}
    assert loop.stopped == {0}
    # Its worker was lost between the last token and the word that it was the last.
    loop = Loop(model, [sequence(0, [3, 4, 5], 20, until)])
    assert loop.run() == {0: []}
    assert loop.stopped == {0}
    model.join([sequence(0, [3, 4, 5], 20, until)])
    model.leave([0])
    assert list(model.step().stopped) == []


def test_a_seed_gives_the_same_tokens_alone_in_company_and_after_a_loss(folders: Any) -> None:
    model = loaded(folders("llama"), 8, chunk_tokens=32)
    chosen = {"temperature": 0.9, "top_k": 30, "top_p": 0.95, "seed": 11}
    (prompt,) = prompts(1, seed=7)
    alone = Loop(model, [sequence(0, prompt, 20, **chosen)]).run()[0]
    others = [
        sequence(0, each, 3 + at, temperature=1.2 * (at % 2), seed=at)
        for at, each in enumerate(prompts(12, seed=8))
    ]
    wanted = [
        *others,
        sequence(0, prompt, 20, **chosen),
        sequence(0, prompt, 20, alone[:9], **chosen),
    ]
    found = Loop(model, wanted).run()
    assert found[12] == alone
    assert found[13] == alone[9:]
    differently = Loop(model, [sequence(0, prompt, 20, **{**chosen, "seed": 12})]).run()[0]
    assert differently != alone
    assert alone != generated(folders("llama"), prompt, 20)


def test_without_a_seed_each_sequence_has_its_own(folders: Any) -> None:
    model = loaded(folders("llama"), 8)
    wanted = [sequence(0, [1, 2], 20, temperature=1.0) for _ in range(4)]
    assert len({tuple(tokens) for tokens in Loop(model, wanted).run().values()}) == 4


@pytest.mark.parametrize(
    ("prompt", "tokens", "parameters", "text"),
    [
        ([], 3, {}, "no token"),
        ([1, VOCABULARY], 3, {}, f"the token {VOCABULARY}; the model knows 0 to {VOCABULARY - 1}"),
        ([-1, 1], 3, {}, "the token -1"),
        ([1] * 80, 17, {}, "ask for at most 16"),
        ([1], 3, {"temperature": -1.0}, "temperature is -1; 0 or more"),
        ([1], 3, {"temperature": float("nan")}, "temperature is nan"),
        ([1], 3, {"top_p": 0.0}, "top_p is 0; more than 0"),
        ([1], 3, {"top_k": -1}, "top_k is -1; 0 "),
    ],
)
def test_a_wrong_request_is_refused_alone(
    folders: Any, prompt: list[int], tokens: int, parameters: dict[str, Any], text: str
) -> None:
    folder = folders("llama")
    model = loaded(folder, 2)
    wrong = sequence(0, prompt, tokens, **parameters)
    refused = model.join([wrong, sequence(1, [4, 5], 2)])
    assert list(refused) == [0]
    assert isinstance(refused[0], bp.InvalidInput)
    assert text in str(refused[0])
    assert [*refused[0].details.values()] == [*parameters]  # as OpenAI's clients are told
    made = [model.step() for _ in range(2)]
    assert [list(step.numbers) for step in made] == [[1], [1]]
    assert [int(step.tokens[0]) for step in made] == generated(folder, [4, 5], 2)


def test_a_request_without_a_number_gets_what_there_is_room_for(folders: Any) -> None:
    folder = folders("llama")
    model = loaded(folder, 2, max_tokens=LENGTH // 2)
    prompt = prompts(1)[0][:3] * LENGTH
    prompt, wanted = prompt[: LENGTH - 4], LENGTH // 2
    assert model.join([sequence(0, prompt, wanted), sequence(1, prompt[:5], 2)]) is not None
    made: list[int] = []
    for _ in range(LENGTH):
        step = model.step()
        made += [int(t) for n, t in zip(step.numbers, step.tokens, strict=True) if n == 0]
        if 0 in step.out_of_room:
            break
    assert (len(made), are_likeliest(folder, prompt, made)) == (4, True)
    model.leave([0, 1])
    model.join([sequence(0, prompt, wanted, made)])  # its worker was lost before it said so
    last = model.step()
    assert (list(last.numbers), list(last.out_of_room)) == ([], [0])
    model.leave([0])
    assert list(model.step().out_of_room) == []
    (error,) = (model.join([sequence(0, prompt, wanted - 1)]) or {}).values()
    assert "ask for at most 4" in str(error)


def test_tokens_that_a_client_has_written_over_are_refused(folders: Any) -> None:
    model = loaded(folders("llama"), 2)
    refused = model.join([sequence(0, [1], 9, [5, VOCABULARY]), sequence(1, [1], 9, [5, 6])])
    assert list(refused) == [0]
    assert "tokens made so far have the token 97" in str(refused[0])
    assert list(model.step().numbers) == [1]


def test_logits_that_are_no_numbers_are_an_error_and_leave_nothing_behind(folders: Any) -> None:
    folder = folders("llama")
    model = loaded(folder, 2)
    weights = torch.nn.Module.state_dict(model._engine._calls._model._model)
    key = next(name for name in weights if name.endswith("embed_tokens.weight"))
    kept = weights[key][3].clone()
    with torch.inference_mode():
        weights[key][3] = torch.inf
    model.join([sequence(0, [1, 3], 5), sequence(1, [4, 5], 5)])
    with pytest.raises(FloatingPointError, match="1 of 2 sequences"):
        model.step()
    model.leave([0, 1])
    with torch.inference_mode():
        weights[key][3] = kept
    # The first one's slot holds more than it has written when the other one looks as far back.
    found = Loop(model, [sequence(0, each, 8) for each in ([4], [4, 5, 6])]).run()
    assert found == {0: generated(folder, [4], 8), 1: generated(folder, [4, 5, 6], 8)}


def test_the_memory_of_the_cache_says_how_many_sequences_run(folders: Any) -> None:
    folder = folders("llama")
    slot = 2 * 2 * 2 * 8 * LENGTH * 4  # layers, keys and values, heads, head size, tokens, bytes
    model = loaded(folder, 16, kv_gib=5.5 * slot / 2**30)
    assert model.sequences == 4  # and one for padding
    with pytest.raises(ValueError, match=r"raise the option kv_gib or lower max_length"):
        loaded(folder, 16, kv_gib=1.5 * slot / 2**30)
    assert loaded(folder, 16).sequences == 16


def test_tokens_come_as_the_declaration_says(folders: Any) -> None:
    model = loaded(folders("llama"), 4)
    model.join([sequence(2, [1, 2], 3)])
    step = model.step()
    assert step.tokens.dtype == np.int32
    assert step.counts is None
    assert list(step.numbers) == [2]
