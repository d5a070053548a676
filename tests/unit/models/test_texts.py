"""Texts run in groups of similar length, each once."""

from __future__ import annotations

import os

import numpy as np
import pytest

from batchpool.model import Batch
from batchpool.models.texts import by_length, decoded, share_cores


def test_every_row_is_in_one_group_of_at_most_twice_its_length() -> None:
    lengths = [0, 64, 65, 128, 129, 5, 1000, 600, 1]
    groups = [group.tolist() for group in by_length(["x" * length for length in lengths])]
    assert groups == [[0, 1, 5, 8], [2, 3], [4], [6, 7]]
    assert list(by_length([])) == []


def test_bytes_that_are_not_utf8_fail_their_rows_alone() -> None:
    batch = Batch(3, {"text": np.array(["é\0".encode(), b"ab\xff", b""], object)})
    assert decoded(batch, "text") == ["é\0", "", ""]
    assert [(row, str(error)) for row, error in batch.failed.items()] == [
        (1, "text is not valid UTF-8: invalid start byte at byte 2")
    ]


@pytest.mark.parametrize(
    ("given", "own", "expected"), [("3", None, "3"), ("3", "5", "5"), (None, None, None)]
)
def test_tokenizers_have_the_threads_of_their_worker(
    monkeypatch: pytest.MonkeyPatch, given: str | None, own: str | None, expected: str | None
) -> None:
    environment = {"OMP_NUM_THREADS": given, "RAYON_NUM_THREADS": own}
    own_environment = {key: value for key, value in environment.items() if value is not None}
    monkeypatch.setattr(os, "environ", own_environment)
    share_cores()
    assert own_environment.get("RAYON_NUM_THREADS") == expected
