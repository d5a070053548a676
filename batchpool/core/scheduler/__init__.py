"""The pure decisions of batching: order, size, waiting, refusals, isolation of bad rows."""
