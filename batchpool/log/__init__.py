"""Logging of every process: set-up, line formats, a writer that never blocks."""
