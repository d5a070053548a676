"""The fast path: infer requests answered inside the HTTP protocol, without an ASGI task."""
