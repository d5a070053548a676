"""One call's arguments, checked before anything is claimed."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from batchpool.client.call import Call, named_inputs
from batchpool.client.pool_facts import ModelFacts
from batchpool.core.errors import InvalidRequest
from tests.unit.client.lane_clients import new_lane_client
from tests.unit.specs import AFFINE

FACTS = ModelFacts(0, AFFINE, 0.9, 30.0, 8)
X = np.ones((2, 4), np.float32)


def call(**changed: Any) -> Call:
    made = Call({"x": X}, **changed)
    made.check(new_lane_client(), FACTS)
    return made


def test_without_a_timeout_the_models_own_counts() -> None:
    made = call()
    assert made.rows.n == 2
    assert made.deadline_ns - made.start_ns == 30 * 10**9
    assert made.timeout_s == 30.0
    assert "30 s" in made.late_text("m")


def test_an_iterator_of_rows_is_there_for_the_next_check_too() -> None:
    """Where the model moves, the call is checked again for its new lane."""
    made = Call({"x": (row for row in X)})
    for _ in range(2):
        made.check(new_lane_client(), FACTS)
        assert made.rows.tensors["x"].tolist() == X.tolist()


@pytest.mark.parametrize("timeout_s", [1e-9, 0.25, 5, 1e8])
def test_a_timeout_counts_from_now(timeout_s: float) -> None:
    made = call(timeout_s=timeout_s)
    assert made.deadline_ns - made.start_ns == int(timeout_s * 1e9)


@pytest.mark.parametrize("timeout_s", [1e12, 1e300, math.inf])
def test_a_timeout_beyond_all_time_still_fits_the_deadline_word(timeout_s: float) -> None:
    assert call(timeout_s=timeout_s).deadline_ns < 2**63


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"timeout_s": 0}, "timeout_s is 0; a positive number was expected"),
        ({"timeout_s": -1.5}, "timeout_s is -1.5; a positive number was expected"),
        ({"timeout_s": math.nan}, "timeout_s is nan; a positive number was expected"),
        ({"priority": -1}, "priority is -1; 0 to 255 was expected"),
        ({"priority": 256}, "priority is 256; 0 to 255 was expected"),
        ({"timeout_s": "3"}, "timeout_s is '3'; a positive number was expected"),
        ({"parameters": ["k"]}, "parameters is ['k']; a dict was expected"),
        ({"outputs": 1}, "outputs is 1; a list of names was expected"),
        ({"outputs": "y"}, "outputs is 'y'; a list of names was expected"),
        ({"priority": 3.0}, "priority is 3.0; 0 to 255 was expected"),
        ({"outputs": ["y", "z"]}, "model 'm' has no output 'z'; it has 'y'"),
    ],
)
def test_what_is_wrong_is_named(wrong: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(text)):
        call(**wrong)


def test_the_outputs_asked_for() -> None:
    assert call().outputs is None
    assert call(outputs=["y"]).outputs == ("y",)
    assert call(outputs=iter(["y"])).outputs == ("y",)
    assert call(priority=255).priority == 255


@pytest.mark.parametrize("kind", [np.int64, np.uint8, bool])
def test_a_priority_may_be_any_whole_number(kind: type) -> None:
    priority = call(priority=kind(1)).priority
    assert (type(priority), priority) == (int, 1)


def test_a_call_that_is_checked_again_keeps_its_time_and_its_outputs() -> None:
    made = call(outputs=iter(["y"]), timeout_s=2)
    before = made.start_ns, made.deadline_ns, made.idempotent
    made.check(new_lane_client(), replace(FACTS, request_timeout_s=1.0, idempotent=False))
    assert (made.start_ns, made.deadline_ns, made.idempotent) == before
    assert (made.outputs, made.timeout_s) == (("y",), 2.0)


def test_inputs_come_in_a_dict_by_keywords_or_by_both() -> None:
    assert named_inputs(None, {"x": 1}) == {"x": 1}
    assert named_inputs({"x": 1}, {"y": 2}) == {"x": 1, "y": 2}


@pytest.mark.parametrize("inputs", [X, [1, 2], 7, "x"], ids=["array", "list", "number", "text"])
def test_inputs_without_names_are_refused_with_the_spelling_that_works(inputs: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"as in infer\('model', x=rows\), were expected"):
        named_inputs(inputs, {})
