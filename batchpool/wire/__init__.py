"""Conversion between HTTP bodies and requests: parsers and encoders, without I/O and clock.

In reading order:

    request       InferRequest and OutputChoice; the headers that every form shares
    elements      BYTES tensors: length-prefixed elements, and lists of JSON strings
    inputs        InputReader: one declared input from bytes or from JSON
    outputs       OutputWriter: one declared output to bytes or to JSON
    classification   Classifier: an output's highest values as text
    model_tables  ModelTables: readers, writers and output choices of one model, built once
    parameters    request parameters: those of the protocol and those of the model
    oip           Open Inference Protocol v2: JSON, with or without binary tensors behind it
    plain         JSON of tensors by name, as people write them
    plain_reader  its inputs; plain_answers writes its outputs
    raw           a body that is one tensor (Inference-Header-Content-Length: 0)
    untyped       a picture, a text or octets: a body whose headers say no more
    msgpack_form  a request as one msgpack map with binary tensors
    forms         WireForm and FORMS: the registry of these forms and the choice by headers
    codec         Codec: all forms of one model; what a front end calls
    encoding      Content-Encoding and Accept-Encoding: gzip, deflate
    request_id    the request's name: X-Request-Id or the trace id of traceparent
    metadata      the JSON objects of the metadata, config and health routes
    statistics    the JSON objects of the statistics routes, from the pool's counters
    repository    the JSON of the model repository's routes
    openai        the errors and the models of OpenAI's API
    embeddings    its embeddings: texts to rows, vectors to the answer
    openai_members   the members of its other requests, one by one
    generation_options   how a text is to be generated: what completions and chats share
    completions   the requests of its completions
    chats         those of its chat completions
    openai_texts  generated texts: answers, and the events of streams
    schemas       JSON Schemas of one model's request and response
    curl_samples  a curl command for each model
    openapi_routes   the paths of the OpenAPI document besides infer
    openapi_openai   those of OpenAI's API
    openapi_texts    its completions and chats among them
    openapi       the OpenAPI document of a running pool

Every refusal is a `PoolError` of `batchpool.core.errors`. Tensors are not copied here, except
BYTES elements and JSON numbers: the arrays of a parsed request are views of the body, read-only
where the body is `bytes`. The caller keeps the body unchanged until the rows are in their slots.
"""
