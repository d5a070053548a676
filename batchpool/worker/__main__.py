"""`python -m batchpool.worker`: a worker process, as the supervisor starts it."""

from __future__ import annotations

import sys

from batchpool.worker.process import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
