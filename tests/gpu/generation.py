"""A decoder on the GPU: its tokens, by CUDA graphs and without them, are those of the CPU, or as
likely as those by the library's own call where half precision decides between them."""

from __future__ import annotations

import os
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import batchpool as bp
from tests.unit.models.decoder_folders import VOCABULARY, Loop, llama, loaded, sequence

_SEQUENCES = 120
_LENGTH = 400  # two lengths of graphs


def check_generation(device: str = "cuda:0") -> dict[str, Any]:
    """In single precision the tokens are those of the CPU, greedy and sampled ones, whatever joins
    and leaves; in half precision as many come. device: "cpu" tries this check itself."""
    draw = random.Random(4)
    wanted = []
    for at in range(_SEQUENCES):
        prompt = [draw.randrange(VOCABULARY) for _ in range(draw.randint(1, 300))]
        chosen: dict[str, Any] = (
            {"temperature": 0.8, "top_p": 0.95, "seed": at} if at % 3 == 0 else {}
        )
        wanted.append(sequence(0, prompt, draw.randint(1, 90), **chosen))
    told: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as place:
        folder = llama(Path(place), max_position_embeddings=512)
        options: dict[str, Any] = {"max_length": _LENGTH, "chunk_tokens": 128}
        expected = Loop(loaded(folder, 24, **options), wanted).run()
        for dtype, graphs in (("float32", True), ("float32", False), ("bfloat16", True)):
            begun_s = time.monotonic()
            model = loaded(folder, 24, device, dtype=dtype, graphs=graphs, **options)
            ready_s = time.monotonic() - begun_s
            found = Loop(model, wanted).run()
            same = sum(found[at] == expected[at] for at in range(_SEQUENCES))
            lengths = [len(found[at]) == len(expected[at]) for at in range(_SEQUENCES)]
            assert all(lengths), "sequences with too few or too many tokens"
            # Additions in another order may decide between two tokens that are as likely.
            if dtype == "float32":
                differ = [at for at in range(_SEQUENCES) if found[at] != expected[at]]
                assert same > 0.95 * _SEQUENCES, _differences(wanted, found, expected, differ)
            told[f"generation, {dtype}, graphs = {graphs}"] = {
                "equal to the CPU": f"{same} of {_SEQUENCES}",
                "ready after, s": round(ready_s, 1),
                "engine": type(model._engine).__name__,
            }
            if dtype == "bfloat16":
                told["generation, bfloat16, regrets"] = _regrets(folder, device, wanted, found)
    return told


def _differences(
    wanted: list[bp.JoiningSequence],
    found: dict[int, list[int]],
    expected: dict[int, list[int]],
    differ: list[int],
) -> str:
    """The places where tokens differ, which may tell why: sequences, first tokens, and how the GPU
    multiplies in single precision."""
    import torch

    places = {
        at: next(
            place
            for place, (a, b) in enumerate(zip(found[at], expected[at], strict=True))
            if a != b
        )
        for at in differ
    }
    sampled = [at for at in differ if wanted[at].parameters["temperature"]]
    return (
        f"{len(differ)} of {_SEQUENCES} differ, {len(sampled)} of them sampled; first different"
        f" tokens {places}; allow_tf32 {torch.backends.cuda.matmul.allow_tf32}, precision"
        f" {torch.get_float32_matmul_precision()}, {dict(filter(_is_of_tf32, os.environ.items()))}"
    )


def _is_of_tf32(variable: tuple[str, str]) -> bool:
    return "TF32" in variable[0]


def _regrets(
    folder: Path, device: str, wanted: list[bp.JoiningSequence], found: dict[int, list[int]]
) -> dict[str, float]:
    """The difference of the largest logit and that of the token that was made, by one call of the
    library's model for each greedy sequence, as a part of the largest logit: mean and most. What is
    made of another sequence's keys, or of too few, is far from the likeliest."""
    import torch
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(str(folder), dtype=torch.bfloat16)
    model.to(device).eval()
    parts = []
    with torch.inference_mode():
        for at, sequence in enumerate(wanted):
            if sequence.parameters["temperature"]:
                continue
            ids = [*sequence.prompt.tolist(), *found[at]]
            logits = model(torch.tensor([ids], device=device)).logits[0].float()
            logits = logits[len(sequence.prompt) - 1 : -1]
            best = logits.max(-1).values
            made = logits.gather(1, torch.tensor(found[at], device=device)[:, None])[:, 0]
            parts.append((best - made) / best.abs())
    regrets = torch.cat(parts)
    told = {"mean": round(float(regrets.mean()), 5), "most": round(float(regrets.max()), 4)}
    assert told["mean"] < 0.002, told
    assert told["most"] < 0.1, told
    return told
