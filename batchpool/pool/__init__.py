"""The processes of the pool: supervisor, batcher and workers."""
