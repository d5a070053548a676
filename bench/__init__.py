"""Benchmarks: each runs the alternative beside ours, interleaved, and checks every answer."""
