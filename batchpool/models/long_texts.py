"""Texts of more tokens than a model takes: cut with a sign, or refused with the number.

A tokenizer cuts without a word. What it has cut off stands in its encodings, so that the tokens of
the whole text are known without a second pass; those of tokenizers in plain Python are not, and
such a text is read once more where it fills the model's limit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

import batchpool as bp

Counts: TypeAlias = Sequence[int] | npt.NDArray[np.int64]

TRUNCATED = "truncated"  # the output of models that cut, and the feature that it is made of


def whole_lengths(
    found: Any, lengths: Sequence[int], most: int, whole: Callable[[int], int]
) -> list[int]:
    """The tokens of each text before it was cut. found: what the tokenizer gave. lengths: of the
    texts after that. most: tokens of a text. whole: the tokens of a text, by its number, without a
    limit."""
    encodings = getattr(found, "encodings", None)
    if encodings is None:
        return [whole(at) if length >= most else length for at, length in enumerate(lengths)]
    return [
        length + sum(_own_tokens(part) for part in encoding.overflowing)
        for length, encoding in zip(lengths, encodings, strict=True)
    ]


def _own_tokens(part: Any) -> int:
    """The tokens of a part of a text that was cut off, without marks and padding."""
    marks: list[int] = part.special_tokens_mask
    return len(marks) - sum(marks)


def refuse_long(batch: bp.Batch, wholes: Counts, lengths: Counts, name: str = "text") -> None:
    """Fail each row whose text was cut. wholes, lengths: of the texts before and after that."""
    for row, (whole, most) in enumerate(zip(map(int, wholes), map(int, lengths), strict=True)):
        if whole <= most or row in batch.failed:
            continue
        text = (
            f"{name} has {whole} tokens; at most {most} are taken: send it in parts, or let the"
            " model cut it with the option truncate = true"
        )
        batch.fail(row, bp.InvalidInput(text, {"tokens": whole, "max_tokens": most}))
