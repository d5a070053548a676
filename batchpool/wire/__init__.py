"""Bytes <-> requests: one parser and one encoder, for both HTTP roads. No I/O, no clock.

In reading order:

    request       InferRequest and OutputChoice; the headers that every form shares
    elements      BYTES tensors: length-prefixed elements, and flat JSON text
    inputs        InputReader: one declared input from bytes or from JSON
    outputs       OutputWriter: one declared output to bytes or to JSON
    tables        ModelTables: readers, writers and choices of one model, built once
    parameters    request parameters: the protocol's own words and the model's
    oip           Open Inference Protocol v2: JSON, with binary tensors behind it
    raw           the body is the tensor (Inference-Header-Content-Length: 0)
    msgpack_form  the same request as one msgpack map with binary tensors
    codec         Codec: picks the form; what the edge calls
    encoding      Content-Encoding and Accept-Encoding: gzip, deflate
    metadata      the JSON objects of the metadata, config and health routes

Everything refused is refused with a `PoolError` of `batchpool.core.errors`.
Tensors are never copied here: a parsed request's arrays are views of the body
(except BYTES elements and JSON numbers), read-only if the body is `bytes`. The caller
keeps the body unchanged until the rows stand in their slots.
"""
