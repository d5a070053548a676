"""The fast path: infer requests answered inside the HTTP protocol."""
