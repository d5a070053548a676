"""The size of a stream written out, told before anything of it is."""

from __future__ import annotations

import struct

import numpy as np
import pyarrow as pa
import pytest

from batchpool.core.tensors.spec import Tensor
from tests.unit.specs import model
from tests.unit.wire.test_arrow_form import refused


def compressed_v4(rows: int, size: int) -> bytes:
    """Rows of so many zeros, whose batch names its compression as Arrow 0.17 did: in the metadata
    of the message, of version V4."""
    nbytes = rows * size
    column = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(nbytes, np.uint8)), size)
    one = pa.record_batch({"x": column})
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(metadata_version=pa.ipc.MetadataVersion.V4)
    with pa.ipc.new_stream(sink, one.schema, options=options) as writer:
        writer.write_batch(one, custom_metadata={"ARROW:experimental_compression": "zstd"})
    end = struct.pack("<II", 0xFFFFFFFF, 0)
    head = bytes(sink.getvalue())[: -nbytes - len(end)]
    written = struct.pack("<q", nbytes) + pa.Codec("zstd").compress(bytes(nbytes)).to_pybytes()
    body = written + bytes(-len(written) % 8)
    # The buffer of the values, then the length of the body.
    assert struct.pack("<qq", 0, nbytes) in head
    head = head.replace(struct.pack("<qq", 0, nbytes), struct.pack("<qq", 0, len(written)))
    head = head.replace(struct.pack("<q", nbytes), struct.pack("<q", len(body)))
    whole: bytes = head + body + end
    return whole


def test_a_compression_in_the_metadata_of_old_versions_is_refused_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    size = 1_000_000
    body = compressed_v4(61, size)
    assert len(body) < 1 << 20
    assert pa.ipc.open_stream(body).read_all().nbytes == 61 * size, "pyarrow decompresses it"
    spec = model(Tensor("x", "uint8", (size,)))
    monkeypatch.setattr(pa.ipc, "open_stream", lambda *_, **__: pytest.fail("it was opened"))
    assert "write the stream with version V5" in refused(spec, body)
