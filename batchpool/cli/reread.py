"""`python -m batchpool.cli.reread ... -- serve ...`: the configuration read again, for a reload.

The supervisor starts it with a control channel and the words that it was started with itself, so
that reading files and asking models what they are holds up nobody. It says one thing and ends:

    surveyed {...}      as supervisor/plan/discover.py writes it
    refused {error}     what is wrong with the configuration, or with a model
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from batchpool.cli.config_source import config_of
from batchpool.cli.parser import WrongUsage, parse
from batchpool.core.errors import ConfigError, StartError
from batchpool.process import bootstrap
from batchpool.supervisor.plan.discover import observe, to_message


def main(argv: Sequence[str]) -> int:
    """Survey and say so. argv: the flags of every child, "--", the words of `batchpool`."""
    cut = list(argv).index("--")
    args = bootstrap.arguments("discovery", argv[:cut])
    bootstrap.start(args.parent)
    bootstrap.outlast_sigterm()
    bootstrap.log_to_stderr("discovery", args)
    channel = bootstrap.control_channel(args.control_fd)
    try:
        message = to_message(observe(config_of(parse(argv[cut + 1 :])), os.environ))
    except (ConfigError, StartError, WrongUsage) as exc:
        message = {"op": "refused", "error": str(exc)}
    channel.send(message)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
