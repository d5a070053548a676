"""The error in a dead letter: that of its record alone."""

from __future__ import annotations

import pytest

from batchpool.consume.rows import of_record
from batchpool.core.errors import InvalidInput, InvalidRequest, PoolError


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (InvalidRequest("row 3: input 'x' has shape [1]"), "input 'x' has shape [1]"),
        (InvalidRequest("row 3: row 0: the value 'x' does not fit"), "the value 'x' does not fit"),
        (InvalidInput("row 30: is what the model calls it"), "row 30: is what the model calls it"),
    ],
)
def test_the_number_of_its_row_in_a_call_is_left_out(error: PoolError, text: str) -> None:
    found = of_record(error, 3)
    assert (type(found), found.message) == (type(error), text)
