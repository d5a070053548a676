"""The tokens of texts before they were cut, whatever kind of tokenizer cut them."""

from __future__ import annotations

import numpy as np
import pytest

from batchpool.model import Batch
from batchpool.models.long_texts import refuse_long, whole_lengths
from tests.unit.models.text_folders import tokenizer

MOST = 8


def unread(at: int) -> int:
    raise AssertionError(f"text {at} was read again")


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("padding", [False, True])
def test_encodings_tell_what_was_cut_off(side: str, padding: bool) -> None:
    fast = tokenizer()
    fast.truncation_side = side
    texts = ["", "cat", "cat " * 6, "cat " * 7, "cats running " * 50]
    whole = [len(fast(text, verbose=False)["input_ids"]) for text in texts]
    assert whole[1:4] == [3, 8, 9]
    found = fast(texts, truncation=True, max_length=MOST, padding=padding)
    lengths = [sum(mask) for mask in found["attention_mask"]]
    assert whole_lengths(found, lengths, MOST, unread) == whole


def test_of_a_tokenizer_without_encodings_the_texts_that_fill_the_limit_are_read_again() -> None:
    asked: list[int] = []

    def whole(at: int) -> int:
        asked.append(at)
        return 8 + at

    assert whole_lengths({}, [3, 8, 8, 7], MOST, whole) == [3, 9, 10, 7]
    assert asked == [1, 2]


def test_a_row_that_is_refused_already_keeps_its_error() -> None:
    batch = Batch(3, {"text": np.array([b"", b"", b""], object)})
    first = ValueError("first")
    batch.fail(0, first)
    refuse_long(batch, [9, 9, 8], [8, 8, 8])
    assert batch.failed[0] is first
    assert list(batch.failed) == [0, 1]
