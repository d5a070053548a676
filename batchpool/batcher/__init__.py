"""The batcher process: admits rows from lanes, forms batches, completes rows."""
