"""Facts and pure decisions: stdlib and numpy only, no clock, no system calls, no torch."""
