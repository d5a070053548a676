"""Small folders of decoders of transformers with random weights, and a loop that runs one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import batchpool as bp
from batchpool.model import make_instance
from batchpool.models.causal_lm import CausalLM

VOCABULARY = 97
LENGTH = 96


def llama(folder: Path, **settings: Any) -> Path:
    from transformers import LlamaConfig, LlamaForCausalLM

    return _saved(folder, LlamaForCausalLM, LlamaConfig, num_key_value_heads=2, **settings)


def gpt_neox(folder: Path, **settings: Any) -> Path:
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    return _saved(folder, GPTNeoXForCausalLM, GPTNeoXConfig, **settings)


def gpt2(folder: Path, **settings: Any) -> Path:
    """Its positions are learned, not rotated."""
    from transformers import GPT2Config, GPT2LMHeadModel

    names = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128}
    return _saved(folder, GPT2LMHeadModel, GPT2Config, **names, **settings)


def _saved(folder: Path, model: Any, config: Any, **settings: Any) -> Path:
    import torch

    torch.manual_seed(3)
    small = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": 128,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": 0,
        # Larger than usual: the logits of random weights are nearly equal otherwise.
        "initializer_range": 0.2,
    }
    if "n_embd" in settings:
        small = {key: small[key] for key in small if key.endswith("id") or "_size" not in key}
        small |= {"vocab_size": VOCABULARY}
    model(config(**{**small, **settings})).save_pretrained(str(folder))
    return folder


def loaded(folder: Path, sequences: int, device: str = "cpu", **options: Any) -> CausalLM:
    """The generator as a worker has it."""
    options = {"max_length": LENGTH, "max_tokens": LENGTH - 1, **options}
    model = make_instance(CausalLM, "m", {"path": folder, **options})
    assert isinstance(model, CausalLM)
    model.sequences = sequences
    model.load(device)
    return model


def sequence(
    number: int,
    prompt: Sequence[int],
    max_tokens: int,
    tokens: Sequence[int] = (),
    **parameters: Any,
) -> bp.JoiningSequence:
    """As a worker makes one of a request with these parameters, and the defaults of the others."""
    values = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "seed": -1, "ignore_eos": False}
    return bp.JoiningSequence(
        number,
        np.array(prompt, np.int32),
        np.array(tokens, np.int32),
        max_tokens,
        {**values, "max_tokens": max_tokens, **parameters},
    )


class Loop:
    """The loop of a worker, without a pool: sequences that wait join as soon as there is room.

    tokens: by the place of the sequence in `wanted`, those made here. stopped: the places of those
    that ended by a token.
    """

    def __init__(self, model: CausalLM, wanted: Iterable[bp.JoiningSequence]) -> None:
        self.model = model
        self.waiting = list(enumerate(wanted))[::-1]
        self.places: dict[int, int] = {}
        self.left: dict[int, int] = {}
        self.tokens: dict[int, list[int]] = {}
        self.stopped: set[int] = set()
        self.steps = 0

    def run(self) -> dict[int, list[int]]:
        while self.waiting or self.places:
            self.step()
        return self.tokens

    def step(self) -> None:
        """Let join who can, run one step, and let leave who has ended."""
        joining = []
        for number in range(self.model.sequences):
            if self.waiting and number not in self.places:
                place, wanted = self.waiting.pop()
                self.places[number], self.tokens[place] = place, []
                self.left[number] = wanted.max_tokens - len(wanted.tokens)
                values = (wanted.prompt, wanted.tokens, wanted.max_tokens, wanted.parameters)
                joining.append(bp.JoiningSequence(number, *values))
        if joining:
            assert not self.model.join(joining)
        made = self.model.step()
        self.steps += 1
        over = set(made.stopped)
        self.stopped |= {self.places[number] for number in made.stopped}
        for number, token in zip(made.numbers, made.tokens, strict=True):
            self.tokens[self.places[number]].append(int(token))
            self.left[number] -= 1
            if not self.left[number]:
                over.add(number)
        self.leave(over)

    def leave(self, numbers: Iterable[int]) -> None:
        numbers = list(numbers)
        self.model.leave(numbers)
        for number in numbers:
            del self.places[number], self.left[number]
