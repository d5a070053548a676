"""The fuzzer over both HTTP paths, and the faults that it has to notice; `make fuzz` sends more."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from batchpool.wire import elements, inputs, oip, plain_reader
from batchpool.wire.inputs import InputReader
from batchpool.wire.raw import RawForm
from tests.fuzz.run import fuzz
from tests.unit.frontend.loops import on_loop


@pytest.mark.parametrize(("seed", "bodies", "fast"), [(101, 3_000, True), (103, 2_000, False)])
@on_loop
async def test_every_body_means_what_the_second_decoder_says(
    seed: int, bodies: int, fast: bool
) -> None:
    outcome = await fuzz(seed, bodies, fast=fast)
    assert outcome.failures == []
    kinds = outcome.kinds
    assert kinds["200"] + kinds["400"] + kinds["413"] + kinds["415"] + kinds["504"] == bodies
    assert kinds["200"] > bodies / 4, "most of what is sent is refused"
    assert kinds["undecided"] < bodies / 100


def _wrap(name: str, dtype: Any, values: Any, shape: Any, kind: str = "input") -> Any:
    numbers = [int(value) & 255 if dtype.name == "uint8" else value for value in values]
    return np.array(numbers).astype(dtype.storage).reshape(shape)


def _first_row_twice(self: InputReader, body: Any, at: int, shape: Any) -> Any:
    array = np.array(np.ndarray(shape, self.dtype, body, at))
    array[-1] = array[0]
    return array


def _text_as_json(self: RawForm, headers: Any, body: Any, priority: int) -> Any:
    raise KeyError("no raw bodies")


FAULTS: dict[str, tuple[Any, str, Any]] = {
    "integers wrap": (inputs, "from_numbers", _wrap),
    "the first row stands for the last": (InputReader, "view", _first_row_twice),
    "an exception is no refusal": (RawForm, "_one_row", _text_as_json),
    "elements may be longer than declared": (elements, "check_length", lambda t, i, e: e),
    "ragged lists are taken": (
        elements, "flatten",
        lambda tensor, values: [v for row in values for v in (row if type(row) is list else [row])],
    ),
    "minus zero loses its sign": (inputs, "MINUS_ZERO", inputs.re.compile(rb"(?!)")),
    "other outputs are answered than were asked for": (
        oip, "_outputs", lambda tables, asked, binary, n: tables.all_outputs(binary),
    ),
    "no member is unknown": (
        plain_reader.PlainReader, "_check_names", lambda self, given, where: None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
@on_loop
async def test_a_fault_is_noticed(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*FAULTS[fault])
    outcome = await fuzz(7, 6_000, most_failures=1)
    assert outcome.failures, fault
