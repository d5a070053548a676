"""The Arrow form: the same values as the binary form, to the bit; and bodies of strangers."""

from __future__ import annotations

import itertools
import json
import random
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings

from batchpool.arrow import types
from batchpool.arrow.columns_out import column_field, column_of, cut_rows
from batchpool.arrow.stream_size import expanded_bytes
from batchpool.core.errors import InvalidRequest, PoolError, TooLarge, UnsupportedMediaType
from batchpool.core.tensors.dtypes import Array
from batchpool.core.tensors.spec import Dim, ModelSpec, Tensor
from batchpool.wire.codec import Codec
from batchpool.wire.request import InferRequest
from tests.house.tree import ROOT
from tests.unit.specs import model
from tests.unit.wire.calls import AFFINE
from tests.unit.wire.strategies import NUMBERS, echoes

HEADERS = {b"content-type": b"application/vnd.apache.arrow.stream"}
RAGGED = model(Tensor("ids", "int32", (Dim(8),)), Tensor("x", "float32"))


def body_of(*batches: Any, compression: str | None = None) -> bytes:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, batches[0].schema, options=options) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return bytes(sink.getvalue())


def ask(spec: ModelSpec, body: Any, **headers: bytes) -> InferRequest:
    if not isinstance(body, bytes):
        body = body_of(body)
    more = {name.encode(): value for name, value in headers.items()}
    return Codec(spec).parse({**HEADERS, **more}, body)


def refused(spec: ModelSpec, body: Any, kind: type[PoolError] = InvalidRequest) -> str:
    with pytest.raises(kind) as caught:
        ask(spec, body)
    assert type(caught.value) is kind
    assert len(caught.value.message) < 1000
    return caught.value.message


def batch(**columns: Any) -> Any:
    return pa.record_batch(
        [value if isinstance(value, pa.Array) else pa.array(value) for value in columns.values()],
        names=list(columns),
    )


def vectors(rows: Any) -> Any:
    return pa.array(rows, pa.list_(pa.float32(), 4))


ROWS: list[list[float]] = [[1, 2, 3, 4], [5, 6, 7, 8]]


@settings(deadline=None)
@given(echoes([*NUMBERS, "bytes"], False, ("a", "b")))
def test_whatever_goes_in_comes_out(case: tuple[ModelSpec, dict[str, Array]]) -> None:
    spec, sent = case
    for lists in (False, True):
        fields = [column_field(tensor, lists=lists) for tensor in spec.inputs]
        columns = [
            column_of(tensor, cut_rows(tensor, sent[tensor.name], None), field.type)
            for tensor, field in zip(spec.inputs, fields, strict=True)
        ]
        body = body_of(pa.record_batch(columns, schema=pa.schema(fields)))
        request = ask(spec, body, accept=b"a/b; tensor=list" if lists else b"*/*")
        for tensor in spec.inputs:
            got = request.rows.tensors[tensor.name]
            assert (got.shape, got.dtype) == (sent[tensor.name].shape, tensor.np_dtype)
            if tensor.is_bytes:
                assert got.tolist() == sent[tensor.name].tolist()
            else:
                assert got.tobytes() == sent[tensor.name].tobytes()
        headers, answer = Codec(spec).encode(request, request.rows.tensors)
        assert dict(headers)[b"content-type"] == HEADERS[b"content-type"]
        there = pa.ipc.open_stream(answer).read_all()
        asked = pa.ipc.open_stream(body).read_all()
        for name in there.column_names:
            mine, theirs = there[name].combine_chunks(), asked[name].combine_chunks()
            assert mine.type == theirs.type
            assert mine.to_pylist() == theirs.to_pylist() or _has_nan(mine)


def _has_nan(array: Any) -> bool:
    return "nan" in str(array.to_pylist())


def test_numbers_are_views_of_the_body() -> None:
    body = body_of(batch(x=vectors(ROWS)))
    x = ask(AFFINE, body).rows.tensors["x"]
    assert x.tolist() == ROWS
    assert np.shares_memory(x, np.frombuffer(body, np.uint8))


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_several_batches_and_compressed_buffers(compression: str) -> None:
    body = body_of(batch(x=vectors(ROWS)), batch(x=vectors(ROWS[:1])), compression=compression)
    assert ask(AFFINE, body).rows.tensors["x"].tolist() == [*ROWS, ROWS[0]]


@pytest.mark.parametrize(
    "column_of_rows",
    [
        lambda: vectors(ROWS),
        lambda: pa.array(ROWS, pa.list_(pa.float32())),
        lambda: pa.array(ROWS, pa.large_list(pa.float32())),
        lambda: pa.FixedShapeTensorArray.from_numpy_ndarray(np.array(ROWS, np.float32)),
    ],
    ids=["fixed-size list", "list", "large list", "tensor"],
)
def test_columns_of_a_fixed_shape(column_of_rows: Any) -> None:
    assert ask(AFFINE, batch(x=column_of_rows())).rows.tensors["x"].tolist() == ROWS


def test_a_flat_list_of_the_right_count_is_a_matrix() -> None:
    spec = model(Tensor("x", "float32", (2, 2)))
    for kind in (pa.list_(pa.float32(), 4), pa.list_(pa.list_(pa.float32(), 2), 2)):
        halves = [[row[:2], row[2:]] for row in ROWS]
        rows: list[Any] = ROWS if kind.value_type == pa.float32() else halves
        found = ask(spec, batch(x=pa.array(rows, kind))).rows.tensors["x"]
        assert found.reshape(2, 4).tolist() == ROWS


def test_rows_of_different_sizes_are_lists_both_ways() -> None:
    ids = [[1, 2, 3], [], [4]]
    request = ask(
        RAGGED, batch(ids=pa.array(ids, pa.list_(pa.int32())), x=pa.array([1.0] * 3, "f4"))
    )
    assert request.rows.sizes["ids"].tolist() == [[3], [0], [1]]
    assert request.rows.tensors["ids"].tolist() == [[1, 2, 3], [0, 0, 0], [4, 0, 0]]
    spec = model(*RAGGED.inputs, outputs=RAGGED.inputs)
    outputs = {**request.rows.tensors, "ids.sizes": request.rows.sizes["ids"]}
    _, body = Codec(spec).encode(request_for(spec, request), outputs)
    assert pa.ipc.open_stream(body).read_all()["ids"].to_pylist() == ids


def request_for(spec: ModelSpec, request: InferRequest) -> InferRequest:
    choices = Codec(spec).parse(HEADERS, body_of(batch(
        ids=pa.array([[1]], pa.list_(pa.int32())), x=pa.array([1.0], "f4")
    ))).outputs  # fmt: skip
    return replace(request, outputs=choices)


def test_rows_with_several_dynamic_dimensions_are_structs_both_ways() -> None:
    tensor = Tensor("m", "int32", (Dim(4), Dim(4)))
    spec = model(tensor, outputs=(tensor,))
    rows = [np.arange(6, dtype=np.int32).reshape(2, 3), np.ones((1, 1), np.int32)]
    field = column_field(tensor)
    body = body_of(
        pa.record_batch([column_of(tensor, rows, field.type)], schema=pa.schema([field]))
    )
    request = ask(spec, body)
    assert request.rows.sizes["m"].tolist() == [[2, 3], [1, 1]]
    outputs = {"m": request.rows.tensors["m"], "m.sizes": request.rows.sizes["m"]}
    _, answer = Codec(spec).encode(request, outputs)
    found = pa.ipc.open_stream(answer).read_all()
    assert found["m"].to_pylist() == pa.ipc.open_stream(body).read_all()["m"].to_pylist()
    assert "arrow.variable_shape_tensor" in str(found.schema.field("m"))


@pytest.mark.parametrize(
    "kind", ["string", "large_string", "binary", "large_binary", "string_view", "binary_view"]
)
def test_every_kind_of_text(kind: str) -> None:
    spec = model(Tensor("t", "bytes", max_bytes=8))
    column = pa.array(["é", "", "abcdefgh"], getattr(pa, kind)())
    for one in (column, column.cast(pa.string()).dictionary_encode()):
        assert ask(spec, batch(t=one)).rows.tensors["t"].tolist() == [b"\xc3\xa9", b"", b"abcdefgh"]


def test_a_parameter_is_a_column_of_one_value() -> None:
    spec = replace(AFFINE, parameters=(Tensor("k", "int64"),))
    assert ask(spec, batch(x=vectors(ROWS), k=[3, 3])).rows.parameters == {"k": 3}
    assert "must have one value" in refused(spec, batch(x=vectors(ROWS), k=[3, 4]))
    assert "'k'" in refused(spec, batch(x=vectors(ROWS)))


def test_outputs_are_chosen_in_the_metadata() -> None:
    spec = model(Tensor("x", "float32"), outputs=(Tensor("y", "float32"), Tensor("z", "float32")))
    good = batch(x=pa.array([1.0], pa.float32()))
    for names, chosen in ((["z"], ["z"]), (["z", "y"], ["z", "y"]), ([], ["y", "z"])):
        marked = good.replace_schema_metadata({"batchpool.outputs": json.dumps(names)})
        assert [choice.name for choice in ask(spec, marked).outputs] == chosen
    for text in ("5", '["w"]', '["y","y"]', "["):
        refused(spec, good.replace_schema_metadata({"batchpool.outputs": text}))


@pytest.mark.parametrize(
    ("name", "column", "text"),
    [
        ("z", lambda: vectors(ROWS), "no input 'z'"),
        ("x", lambda: vectors([ROWS[0], None]), "column 'x': row 1 is null"),
        ("x", lambda: pa.array([1.0, 2.0], pa.float32()), "has type float"),
        ("x", lambda: pa.array(ROWS, pa.list_(pa.float64(), 4)), "elements of type double"),
        ("x", lambda: pa.array([[1.0], [2.0]], pa.list_(pa.float32(), 1)), "rows of shape [1]"),
        ("x", lambda: pa.array([[1.0] * 4, [2.0]], pa.list_(pa.float32())), "row 1 has 1 elements"),
        ("x", lambda: pa.array([[1, 2, 3, None]], pa.list_(pa.float32(), 4)), "is null"),
        ("x", lambda: pa.array(["a"]), "has type string"),
        ("x", lambda: pa.array([{"a": 1}]), "has type struct"),
        ("x", lambda: pa.nulls(2), "is null"),
    ],
)
def test_a_column_that_does_not_fit_is_named(name: str, column: Any, text: str) -> None:
    message = refused(AFFINE, batch(**{name: column()}))
    assert text in message
    assert "was expected" in message or "it has 'x'" in message


def test_too_long_and_too_many() -> None:
    spec = model(Tensor("t", "bytes", max_bytes=8))
    assert "element 1 has 9 bytes; at most 8 fit (max_bytes in the model)" in refused(
        spec, batch(t=["", "x" * 9]), TooLarge
    )
    rows = batch(ids=pa.array([[0] * 9, []], pa.list_(pa.int32())), x=pa.array([1, 2], "f4"))
    assert "larger than a slot holds" in refused(RAGGED, rows, TooLarge)
    assert "0 rows" in refused(AFFINE, batch(x=vectors([])))
    many = pa.array(np.zeros(2**20 + 1, bool))
    refused(model(Tensor("b", "bool")), batch(b=many), TooLarge)


def test_a_file_is_told_from_a_stream() -> None:
    rows, sink = batch(x=vectors(ROWS)), pa.BufferOutputStream()
    with pa.ipc.new_file(sink, rows.schema) as writer:
        writer.write_batch(rows)
    text = refused(AFFINE, sink.getvalue().to_pybytes())
    assert "an Arrow file (it begins with ARROW1); a stream was expected" in text
    assert "new_stream" in text
    assert "a message in it is cut off" in refused(AFFINE, body_of(rows)[:-100])


def test_small_bodies_that_would_become_large_are_refused() -> None:
    large = np.zeros(64 << 20, np.uint8)
    spec = model(Tensor("x", "uint8", (1 << 20,)))
    column = pa.FixedSizeListArray.from_arrays(pa.array(large), 1 << 20)
    body = body_of(batch(x=column), compression="zstd")
    assert len(body) < 1 << 20
    assert expanded_bytes(memoryview(body)) >= large.nbytes
    assert "compressed buffers" in refused(spec, body, TooLarge)
    texts = pa.DictionaryArray.from_arrays(np.zeros(10_000, np.int32), pa.array(["x" * 10_000]))
    spec = model(Tensor("t", "bytes", max_bytes=10_000))
    assert "written out" in refused(spec, batch(t=texts), TooLarge)


def day_intervals() -> bytes:
    """A stream with a column of interval[day_time], for which pyarrow has no class: one of doubles
    whose type has another number, and whose precision is the unit of days."""
    sound = body_of(batch(x=pa.array(ROWS[:1], pa.list_(pa.float64(), 4))))
    of_type, of_unit = (
        [at for at, value in enumerate(sound) if value == number] for number in (3, 2)
    )
    for at, unit in itertools.product(of_type, of_unit):
        other = bytearray(sound)
        other[at], other[unit] = 11, 1
        with suppress(pa.ArrowException, OSError):
            if "day_time_interval" in str(pa.ipc.open_stream(bytes(other)).schema):
                return bytes(other)
    raise AssertionError("no stream of intervals was found")


def test_a_type_that_pyarrow_has_no_class_for_is_refused() -> None:
    refused(AFFINE, day_intervals())


def test_offsets_that_lead_out_of_the_body_are_refused() -> None:
    spec = model(Tensor("t", "bytes", max_bytes=1 << 20))
    offsets = np.array([0, 3, 100_000], np.int64)
    body = bytearray(body_of(batch(t=pa.array(["abc", "de"], pa.large_string()))))
    at = bytes(body).index(np.array([0, 3, 5], np.int64).tobytes())
    body[at : at + 24] = offsets.tobytes()
    assert "no valid stream of Arrow" in refused(spec, bytes(body))
    inner = bytearray(body_of(batch(t=pa.array(["abc", "de", "f"], pa.large_string()))))
    at = bytes(inner).index(np.array([0, 3, 5, 6], np.int64).tobytes())
    inner[at : at + 32] = np.array([0, 5, 3, 6], np.int64).tobytes()
    assert "no valid stream of Arrow" in refused(spec, bytes(inner))


def test_bodies_of_strangers_are_read_or_refused() -> None:
    chance = random.Random(7)
    texts = model(Tensor("t", "bytes", (2,), max_bytes=8), Tensor("ids", "int32", (Dim(8),)))
    columns = batch(
        t=pa.array([["a", "b"], ["c", ""]], pa.list_(pa.string())),
        ids=pa.array([[1], [2, 3]], pa.list_(pa.int32())),
    )
    bodies = [
        (AFFINE, body_of(batch(x=vectors(ROWS)))),
        (AFFINE, body_of(batch(x=vectors(ROWS)), compression="lz4")),
        (texts, body_of(columns)),
        (texts, body_of(columns, compression="zstd")),
    ]
    codecs = [(Codec(spec), body) for spec, body in bodies]
    for _ in range(3_000):
        codec, body = chance.choice(codecs)
        broken = bytearray(body)
        for _ in range(chance.choice((1, 1, 2, 8))):
            at = chance.randrange(len(broken))
            kind = chance.randrange(3)
            if kind == 0:
                broken[at] = chance.randrange(256)
            elif kind == 1:
                broken[at : at + 4] = chance.choice((b"\xff" * 4, b"\0" * 4, b"\xff\xff\xff\x7f"))
            else:
                del broken[at : at + chance.randrange(1, 16)]
        with suppress(InvalidRequest, TooLarge):
            codec.parse(HEADERS, bytes(broken))
    for spec, body in bodies:
        for size in range(0, len(body), 7):
            with pytest.raises((InvalidRequest, TooLarge)):
                ask(spec, body[: size - len(body)] if size else b"")


def test_without_pyarrow_the_answer_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    types.arrow.cache_clear()
    try:
        message = refused(AFFINE, b"", UnsupportedMediaType)
    finally:
        types.arrow.cache_clear()
    assert "pip install 'batchpool[arrow]'" in message


def test_pandas_is_not_loaded_for_a_body() -> None:
    """Conversions of pyarrow itself would: half a second of a front end."""
    code = """
import sys
import numpy as np
from batchpool.arrow.columns_out import *
from batchpool.wire.codec import Codec
from tests.unit.specs import model
tensors = (Tensor("t", "bytes", max_bytes=8), Tensor("b", "bool"), Tensor("x", "float32", (2,)),
           Tensor("ids", "int32", (Dim(4),)))
spec = model(*tensors, outputs=tensors)
rows = [np.array([b"a"], object), np.array([True]), np.ones((1, 2), np.float32),
        np.ones((1, 3), np.int32)]
fields = [column_field(tensor) for tensor in tensors]
columns = [column_of(*some, field.type) for *some, field in zip(tensors, rows, fields)]
batch = arrow().record_batch(columns, schema=arrow().schema(fields))
sink = arrow().BufferOutputStream()
with arrow().ipc.new_stream(sink, batch.schema) as writer:
    writer.write_batch(batch)
headers = {b"content-type": b"application/vnd.apache.arrow.stream"}
request = Codec(spec).parse(headers, sink.getvalue().to_pybytes())
Codec(spec).encode(request, request.rows.tensors)
found = request.rows.tensors
print(found["t"], found["b"], "pandas" in sys.modules)
"""
    code = "from batchpool.core.tensors.spec import Dim, Tensor" + code
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[b'a'] [ True] False\n"
