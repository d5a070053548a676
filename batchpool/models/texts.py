"""Texts of a batch: decoded, and in groups of similar length."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

import batchpool as bp

_SHORTEST_GROUP = 64  # characters; texts up to here run together, however short they are


def share_cores() -> None:
    """Give the tokenizers of Hugging Face the worker's share of the cores, which they do not know;
    to be called before the first of them runs. A user's own setting wins."""
    if threads := os.environ.get("OMP_NUM_THREADS"):
        os.environ.setdefault("RAYON_NUM_THREADS", threads)


def decoded(batch: bp.Batch, name: str) -> list[str]:
    """The texts of an input. One that is not UTF-8 fails its row, with the offset of the first bad
    byte, and counts as "", whose outputs nobody gets."""
    texts = []
    for row, raw in enumerate(batch[name]):
        try:
            texts.append(raw.decode())
        except UnicodeDecodeError as error:
            text = f"{name} is not valid UTF-8: {error.reason} at byte {error.start}"
            batch.fail(row, bp.InvalidInput(text, {"offset": error.start}))
            texts.append("")
    return texts


def by_length(texts: Sequence[str]) -> Iterator[npt.NDArray[np.intp]]:
    """Row numbers in groups whose lengths have one next power of two, so that padding to the
    longest of a group never doubles the work."""
    size = np.ceil(np.log2(np.maximum([len(text) for text in texts], _SHORTEST_GROUP)))
    for group in np.unique(size):
        yield np.flatnonzero(size == group)
