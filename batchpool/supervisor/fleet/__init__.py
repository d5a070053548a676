"""The running processes: batcher and front ends, workers."""
