"""The process that imports one model class, prints its declaration, and exits.

It runs in a worker's environment and does not call `load`, so that the supervisor can plan a pool
and the front ends can serve its metadata without importing a user's code. Its report
(`batchpool/worker/report.py`) has:

    spec   ModelSpec.to_wire
    cuda   whether the framework has CUDA
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from batchpool.model import spec_of
from batchpool.process.bootstrap import start
from batchpool.worker.backends.select import has_cuda
from batchpool.worker.load import load_class
from batchpool.worker.report import print_report


def describe(import_name: str) -> dict[str, Any]:
    """The declaration of one model. Raises what its code raises."""
    spec = spec_of(load_class(import_name))
    return {"spec": spec.to_wire(), "cuda": has_cuda(spec)}


def main(argv: Sequence[str]) -> int:
    """`python -m batchpool.worker.describe MODULE:CLASS [PARENT]`: print the report.

    Returns 0 if the model could be described, 1 if not, 2 for wrong arguments. PARENT: the pid of
    the process whose death ends this one; left out when started by hand.
    """
    if len(argv) not in (1, 2):
        print("usage: batchpool.worker.describe MODULE:CLASS [PARENT]", file=sys.stderr)
        return 2
    if len(argv) == 2:
        start(int(argv[1]))
    return print_report(lambda: describe(argv[0]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
