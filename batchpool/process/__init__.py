"""The start of every child process of the pool."""
