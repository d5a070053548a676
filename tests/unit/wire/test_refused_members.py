"""A refusal by the model names the member that is at fault, as OpenAI's clients read it."""

from __future__ import annotations

import pytest

from batchpool.core.errors import InvalidInput
from batchpool.wire.openai import error_object
from batchpool.wire.openai_members import about_refused


def refused(error: InvalidInput, row: int | None = None) -> str:
    error.row = row
    member: str = error_object(about_refused("input", error), {})["error"]["param"]
    return member


def test_a_refusal_is_about_the_input_of_its_row() -> None:
    assert refused(InvalidInput("no UTF-8", {"offset": 3})) == "input"
    assert refused(InvalidInput("no UTF-8", {"offset": 3}), row=2) == "input[2]"


@pytest.mark.parametrize("row", [None, 0, 2])
def test_a_refusal_of_a_parameter_is_about_that_in_every_row(row: int | None) -> None:
    error = InvalidInput("top_k is -1; 0 or more was expected", {"parameter": "top_k"})
    assert refused(error, row) == "top_k"


def test_details_of_another_kind_name_nothing() -> None:
    assert refused(InvalidInput("no", {"parameter": 7})) == "input"
    assert refused(InvalidInput("no", {"parameter": "n" * 100})) == "n" * 80
