"""`python -m batchpool.tasks`: the task process."""

from __future__ import annotations

import sys

from batchpool.tasks.process import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
