"""Calls through bp.Client: any number of rows, every kind of tensor, parameters, refusals."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

import batchpool as bp
from tests.lazy import library
from tests.process.gates import open_gate, opened_at_last
from tests.process.models import FAULTS
from tests.process.pool_under_test import PATIENCE_S, Pool, until

pa = library("pyarrow")


def rows_of(n: int, first: int = 0) -> Any:
    """n rows of four numbers, no two alike and small enough to be exact."""
    return np.arange(first, first + 4 * n, dtype=np.float32).reshape(n, 4)


@pytest.mark.parametrize("n", [1, 2, 63, 64, 65, 921, 922, 5000])
def test_any_number_of_rows_comes_back_in_order(client: bp.Client, n: int) -> None:
    # 64 rows fill a batch, 921 of the lane's 1,024 slots may be claimed at once.
    x = rows_of(n)
    found = client.infer("affine", x=x)
    assert list(found) == ["y"]
    assert found["y"].dtype == np.float32
    np.testing.assert_array_equal(found["y"], 2 * x + 1)


def test_no_rows_are_refused(client: bp.Client) -> None:
    """C05: a local program gets the refusal that HTTP gives."""
    with pytest.raises(bp.InvalidRequest, match=r"rows"):
        client.infer("affine", x=np.empty((0, 4), np.float32))


@pytest.mark.parametrize("n", [9, 100])
def test_more_rows_than_a_batch_are_split_and_joined(client: bp.Client, n: int) -> None:
    """C12: 9 and 100 rows come back in order."""
    tags = np.arange(n)
    found = client.infer("probe", tag=tags, seconds=np.zeros(n, np.float32))
    np.testing.assert_array_equal(found["tag"], tags)
    assert found["rows"].max() <= 8
    assert len(np.unique(found["call"])) >= n / 8


def test_a_batch_counts_rows_and_not_requests(everyday: Pool, client: bp.Client) -> None:
    """C12: requests of 3, 5, 7 and 8 rows: no call of the model sees more than 8."""
    before = everyday.tally("probe")
    sizes = [3, 5, 7, 8] * 10
    futures = []
    for i, n in enumerate(sizes):
        tags = np.arange(n) + 100 * i
        futures.append((tags, client.submit("probe", tag=tags, seconds=np.zeros(n, np.float32))))
    for tags, future in futures:
        found = future.result(PATIENCE_S)
        np.testing.assert_array_equal(found["tag"], tags)
        assert found["rows"].max() <= 8
    after = everyday.tally("probe")
    assert after["rows"] - before["rows"] == sum(sizes)


@pytest.mark.parametrize("lengths", [[0], [64], [3, 0, 64, 1], list(range(65)) * 20])
def test_rows_of_their_own_size(client: bp.Client, lengths: list[int]) -> None:
    """C05, C07: rows of nothing ride with all others; each answer has its own row's size."""
    # Rows of one request have one shape; those of a batch have not.
    futures = [client.submit("ragged", ids=np.arange(n)[None] + 10) for n in lengths[:100]]
    for n, future in zip(lengths[:100], futures, strict=True):
        found = future.result(PATIENCE_S)
        np.testing.assert_array_equal(found["next"], np.arange(n)[None] + 11)
        assert found["sum"].tolist() == [int((np.arange(n) + 10).sum())]


def test_a_row_above_the_maximum_is_refused_by_name(client: bp.Client) -> None:
    with pytest.raises(bp.TooLarge, match=r"'ids'.*64"):
        client.infer("ragged", ids=np.zeros((1, 65), np.int64))


def test_bytes_come_back_as_they_went(client: bp.Client) -> None:
    """C52: mixed lengths in one batch, NUL bytes and no UTF-8 among them."""
    texts = [b"", b"a", b"nul\0", b"\0\0", b"\xff\xfe", "Grüße".encode(), b"x" * 4096]
    found = client.infer("echo", text=np.array(texts, dtype=object))
    assert found["text"].tolist() == texts
    assert found["length"].tolist() == [len(text) for text in texts]
    many = [b"%d" % i * (i % 50) for i in range(1500)]
    assert client.infer("echo", text=np.array(many, dtype=object))["text"].tolist() == many
    with pytest.raises(bp.TooLarge, match=r"4097"):
        client.infer("echo", text=[b"x" * 4097])


def test_columns_of_arrow_come_back_as_they_went(client: bp.Client) -> None:
    texts = ["", "a", "nul\0", "Grüße", "x" * 4096, *(f"{i} " * (i % 150) for i in range(1500))]
    expected = [text.encode() for text in texts]
    table = pa.table({"text": pa.chunked_array([texts[:400], texts[400:]])})
    for given in ({"text": table["text"].chunk(1)}, {"text": table["text"]}, table):
        rows = expected[-len(given["text"]) :]
        found = client.infer("echo", given)
        assert found["text"].tolist() == rows
        assert found["length"].tolist() == [len(row) for row in rows]
        assert [one["text"] for one in client.map("echo", given)] == rows
    bad = pa.array(["a", None, "x" * 4097, "b"])
    found = client.infer("echo", text=bad, errors="return")
    assert [type(entry).__name__ for entry in found["text"]] == [
        "bytes", "InvalidRequest", "TooLarge", "bytes",
    ]  # fmt: skip
    ends = list(client.map("echo", {"text": bad}, errors="return"))
    assert [type(end).__name__ for end in ends] == ["dict", "InvalidRequest", "TooLarge", "dict"]


def test_parameters_ride_with_their_rows(everyday: Pool, client: bp.Client) -> None:
    """C16: different ones share calls, row by row."""
    x = np.array([[1.0, -2.0]])
    settings = [(scale / 4, shift) for scale in range(8) for shift in (-1, 0, 7)]

    def ride_together() -> bool:
        before = everyday.tally("scaled")["batches"]
        futures = [
            client.submit("scaled", x=x, parameters={"scale": scale, "shift": shift})
            for scale, shift in settings
        ]
        for (scale, shift), future in zip(settings, futures, strict=True):
            np.testing.assert_array_equal(future.result(PATIENCE_S)["y"], x * scale + shift)
        return int(everyday.tally("scaled")["batches"]) - before < len(settings)

    until(ride_together, "some of them ride together: this process may stand still between them")


def test_parameters_have_defaults_and_names(client: bp.Client) -> None:
    """C16: a request alone in its batch; a scalar stays a number for each row."""
    x = np.ones((2, 2))
    found = client.infer("scaled", x=x, parameters={"shift": 3})
    assert found["y"].tolist() == [[4, 4], [4, 4]]
    with pytest.raises(bp.InvalidRequest, match=r"'shift'.*missing"):
        client.infer("scaled", x=x)
    with pytest.raises(bp.InvalidRequest, match=r"'sacle'"):
        client.infer("scaled", x=x, parameters={"shift": 3, "sacle": 2.0})


def test_outputs_asked_for_are_the_outputs_that_come(client: bp.Client) -> None:
    """C04, C16: one of two, both, or a refusal with the unknown one's name."""
    x = np.ones((1, 2))
    both = client.infer("scaled", x=x, parameters={"shift": 1})
    assert sorted(both) == ["twice", "y"]
    one = client.infer("scaled", x=x, parameters={"shift": 1}, outputs=["twice"])
    assert {k: v.tolist() for k, v in one.items()} == {"twice": [[4.0, 4.0]]}
    with pytest.raises(bp.InvalidRequest, match=r"'thrice'"):
        client.infer("scaled", x=x, parameters={"shift": 1}, outputs=["thrice"])


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"x": np.zeros((1, 5), np.float32)}, "'x'.*5"),
        ({"x": np.zeros(4, np.float32)}, "'x'"),
        ({"x": np.zeros((1, 4), np.complex64)}, "'x'.*complex64"),
        ({"z": np.zeros((1, 4), np.float32)}, "'z'"),
        ({}, "'x'"),
        ({"x": "text"}, "'x'"),
    ],
)
def test_wrong_tensors_are_refused_at_once(
    client: bp.Client, tensors: dict[str, Any], message: str
) -> None:
    with pytest.raises(bp.InvalidRequest, match=message):
        client.infer("affine", tensors)
    np.testing.assert_array_equal(client.infer("affine", x=rows_of(1))["y"], 2 * rows_of(1) + 1)


def test_an_unknown_model_names_those_there_are(client: bp.Client) -> None:
    with pytest.raises(bp.NotFound, match=r"'afine'.*'affine'"):
        client.infer("afine", x=rows_of(1))


@pytest.mark.parametrize(
    "x",
    [
        rows_of(8)[::2],
        rows_of(8)[::-1],
        np.asfortranarray(rows_of(8)),
        rows_of(4).astype(">f4"),
        np.broadcast_to(rows_of(1), (5, 4)),
        rows_of(4).T.copy().T,
    ],
    ids=["strided", "backward", "fortran", "big endian", "zero stride", "transposed"],
)
def test_arrays_of_any_order_arrive_whole(client: bp.Client, x: Any) -> None:
    """C64: through a real pool."""
    np.testing.assert_array_equal(client.infer("affine", x=x)["y"], 2 * x + 1)


def test_numbers_that_are_no_numbers_come_back(client: bp.Client) -> None:
    """C53: to local programs as they are."""
    x = np.array([[1, 0, 0], [0, 0, 0], [-1, 5, 0]], np.float32)
    with np.errstate(all="ignore"):
        expected = x / x[:, ::-1]
    np.testing.assert_array_equal(client.infer("special", x=x)["y"], expected)


def test_outputs_larger_than_their_slot_fail_their_row_only(client: bp.Client) -> None:
    """C22: exact below the slot's size, refused above it, for local programs."""
    sizes = [0, 1, 63, 64, 65, 640, 64, 3]
    futures = [client.submit("grow", size=[size]) for size in sizes]
    for size, future in zip(sizes, futures, strict=True):
        if size <= 64:
            found = future.result(PATIENCE_S)
            np.testing.assert_array_equal(found["numbers"], np.arange(size)[None])
            assert found["blob"].tolist() == [(b"ab\0" * size)[:size]]
        else:
            with pytest.raises(bp.ModelError, match=rf"{size}.*64"):
                future.result(PATIENCE_S)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_model_that_fails_fails_its_callers_only(client: bp.Client, fault: str) -> None:
    """C17: whatever it raises or returns, the text is bounded and the next 20 are right."""
    with pytest.raises(bp.ModelError) as caught:
        client.infer("faulty", x=[1.0], fault=[FAULTS[fault]])
    assert 0 < len(str(caught.value)) <= 240
    for i in range(20):
        assert client.infer("faulty", x=[float(i)], fault=[0])["y"].tolist() == [2 * i]


def test_a_model_error_says_what_was_raised_or_wrong(client: bp.Client) -> None:
    """C17, C19: also that an input which the model wrote to is read-only."""
    expected = {
        "raises": "ValueError: this row is bad",
        "wrong dtype": "'y' has dtype float64; float32",
        "short": r"'y' has shape \[0\]; \[1\]",
        "no output": "no output 'y'",
        "another output": "undeclared output 'z'",
        "edits its input": "read-only",
    }
    for fault, message in expected.items():
        with pytest.raises(bp.ModelError, match=message):
            client.infer("faulty", x=[1.0], fault=[FAULTS[fault]])


def test_a_deadline_is_kept_and_the_slots_come_back(everyday: Pool) -> None:
    with everyday.client() as client, opened_at_last(everyday, 401):
        client.infer("probe", tag=[0], seconds=[0.0])
        start = time.monotonic()
        with pytest.raises(bp.DeadlineExceeded, match=r"'probe'.*0\.1 s"):
            client.infer("probe", tag=[1], seconds=[0.0], gate=[401], timeout_s=0.1)
        assert time.monotonic() - start >= 0.1
        # Not run at all: the worker is still busy with the row above.
        with pytest.raises(bp.DeadlineExceeded):
            client.infer("probe", tag=[2], seconds=[5.0], timeout_s=0.05)
        open_gate(everyday, 401)
        found = client.infer("probe", tag=np.arange(900), seconds=np.zeros(900, np.float32))
        assert found["tag"].tolist() == list(range(900))
        until(lambda: everyday.claimed() == 0, "the return of all slots")
