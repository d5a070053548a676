"""Columns of Arrow become tensors of the declared type, or are refused."""

from __future__ import annotations

import pyarrow as pa

from batchpool.core.tensors.spec import Tensor
from batchpool.wire.codec import Codec
from tests.unit.specs import model
from tests.unit.wire.test_arrow_form import ask, batch, refused


def test_bfloat16_is_marked() -> None:
    tensor = Tensor("h", "bfloat16")
    spec = model(tensor, outputs=(tensor,))
    bits = pa.array([0x3F80, 0x4000], pa.uint16())
    marked = pa.schema([pa.field("h", pa.uint16(), metadata={"batchpool.datatype": "BF16"})])
    request = ask(spec, pa.record_batch([bits], schema=marked))
    assert request.rows.tensors["h"].tolist() == [0x3F80, 0x4000]
    _, body = Codec(spec).encode(request, request.rows.tensors)
    assert pa.ipc.open_stream(body).schema.field("h").metadata == {b"batchpool.datatype": b"BF16"}
    assert "BF16" in refused(spec, batch(h=bits))
    assert "BF16" in refused(model(Tensor("h", "uint16")), pa.record_batch([bits], schema=marked))
