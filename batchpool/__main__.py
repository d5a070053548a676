"""`python -m batchpool`: the command line."""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    # The current directory, where a file of the user's may have the name of a module of Python's.
    # It stays where this package is found there, as in a checkout that is not installed.
    ours = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    if not sys.flags.safe_path and os.path.abspath(sys.path[0]) != ours:
        del sys.path[0]
    from batchpool.cli import main

    sys.exit(main())
