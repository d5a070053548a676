"""OpenAI's files and batches: what callers upload, and the runs of its lines in the pool."""
