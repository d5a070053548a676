"""CPU time to read and write a request of many rows, in each wire form.

    python -m bench.wire_forms [--rows 256] [--rounds 9] [--save FILE.json]

Bodies are read into rows, and the same rows written as an answer, in one thread without a pool:
the steps of a front end that depend on the form. In CPU time, all forms in turns; every answer is
compared with what went in.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from typing import Any

import msgpack
import numpy as np

from batchpool.arrow.columns_out import column_field, column_of
from batchpool.arrow.types import arrow
from batchpool.core.tensors.spec import ModelSpec, Tensor
from batchpool.wire.codec import Codec
from bench.support.machine import report, spread

_LEAST_S = 0.1
Body = tuple[dict[bytes, bytes], bytes]


def bodies(tensor: Tensor, rows: Any) -> dict[str, Body]:
    """One request with these rows in each form."""
    head: dict[str, Any] = {
        "name": tensor.name,
        "shape": list(rows.shape),
        "datatype": tensor.wire_dtype,
    }
    written = json.dumps({"inputs": [{**head, "data": rows.reshape(-1).tolist()}]}).encode()
    sized = {**head, "parameters": {"binary_data_size": rows.nbytes}}
    binary = {"inputs": [sized], "parameters": {"binary_data_output": True}}
    start = json.dumps(binary).encode()
    packed = {"dtype": tensor.wire_dtype, "shape": list(rows.shape), "data": rows.tobytes()}
    pa = arrow()
    field = column_field(tensor)
    batch = pa.record_batch([column_of(tensor, rows, field.type)], schema=pa.schema([field]))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return {
        "json": ({}, written),
        "binary": (
            {b"inference-header-content-length": b"%d" % len(start)},
            start + rows.tobytes(),
        ),
        "msgpack": (
            {b"content-type": b"application/msgpack"},
            msgpack.packb({"inputs": {tensor.name: packed}}),
        ),
        "arrow": (
            {b"content-type": b"application/vnd.apache.arrow.stream"},
            sink.getvalue().to_pybytes(),
        ),
    }


def cost_us(codec: Codec, body: Body, rows: Any, name: str) -> float:
    """CPU microseconds to read a body and to write its rows as an answer."""
    turns, began_s, spent_s = 0, time.thread_time(), 0.0
    while spent_s < _LEAST_S:
        request = codec.parse(*body)
        codec.encode(request, {"y": request.rows.tensors[name]})
        turns += 1
        spent_s = time.thread_time() - began_s
    if not np.array_equal(request.rows.tensors[name], rows):
        raise SystemExit("the rows are others than those that went in")
    return spent_s / turns * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--save")
    args = parser.parse_args()
    found: dict[str, list[float]] = defaultdict(list)
    for shape in ((512,), (3, 32, 32)):
        tensor = Tensor("x", "float32", shape)
        spec = ModelSpec("m", "numpy", (tensor,), (Tensor("y", "float32", shape),))
        codec = Codec(spec)
        rows = np.random.default_rng(1).random((args.rows, *shape), np.float32)
        given = bodies(tensor, rows)
        for _ in range(args.rounds):
            for form, body in given.items():
                found[f"{form}, rows {list(shape)}"].append(cost_us(codec, body, rows, "x"))
    told = {f"us a request: {name}": spread(values, 1) for name, values in found.items()}
    report(f"requests of {args.rows} rows: read and written", told, args.save)


if __name__ == "__main__":
    main()
