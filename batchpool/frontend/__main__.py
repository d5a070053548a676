"""`python -m batchpool.frontend`: a front-end process, as the supervisor starts it."""

from __future__ import annotations

import gc
import sys

# What modules make while they load stays. To walk it again and again took a fifth of the start.
gc.disable()

from batchpool.frontend.process import main  # noqa: E402
from batchpool.process.bootstrap import leave  # noqa: E402

gc.enable()

if __name__ == "__main__":
    leave(main(sys.argv[1:]))
