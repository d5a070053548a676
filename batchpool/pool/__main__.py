"""`python -m batchpool.pool ROLE ...`: what the supervisor starts; also by hand, to debug."""

from __future__ import annotations

import sys


def main() -> int:
    role, argv = (sys.argv[1] if len(sys.argv) > 1 else ""), sys.argv[2:]
    if role == "describe":
        from batchpool.pool.describe import main as run
    elif role == "batcher":
        from batchpool.pool.batcher_process import main as run
    elif role == "worker":
        from batchpool.pool.worker_process import main as run
    else:
        print(
            f"batchpool.pool: unknown role {role!r}; known: describe, batcher, worker"
            " (the HTTP front end is batchpool.edge)",
            file=sys.stderr,
        )
        return 2
    return run(argv)


if __name__ == "__main__":
    sys.exit(main())
