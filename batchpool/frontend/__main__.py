"""`python -m batchpool.frontend`: a front-end process, as the supervisor starts it."""

from __future__ import annotations

import sys

from batchpool.frontend.process import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
