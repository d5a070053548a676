"""Statistics in shared memory: counters, the flight recorder of batches, recent errors."""
