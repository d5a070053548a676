"""The command line: a command a file, `main` over all of them."""

from batchpool.cli.main import main

__all__ = ["main"]
