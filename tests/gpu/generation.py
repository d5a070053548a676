"""A decoder on the GPU: its tokens, by CUDA graphs and without them, are those of the CPU."""

from __future__ import annotations

import random
import tempfile
import time
from pathlib import Path
from typing import Any

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
            assert dtype != "float32" or same > 0.95 * _SEQUENCES, f"{same} of {_SEQUENCES}"
            told[f"generation, {dtype}, graphs = {graphs}"] = {
                "equal to the CPU": f"{same} of {_SEQUENCES}",
                "ready after, s": round(ready_s, 1),
            }
    return told
