"""`python -m batchpool.cli.reread ... -- serve ...`: the configuration read again, for a reload.

The supervisor starts it with a control channel and the words that it was started with itself, so
that reading files and asking models what they are holds up nobody. It says one thing and ends:

    surveyed {...}      as pool/survey.py writes it
    refused {error}     what is wrong with the configuration, or with a model
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from batchpool.cli.configured import config_of
from batchpool.cli.parser import WrongUsage, parse
from batchpool.core.errors import ConfigError, StartError
from batchpool.pool import child
from batchpool.pool.survey import observe, to_message


def main(argv: Sequence[str]) -> int:
    """Survey and say so. argv: the flags of every child, "--", the words of `batchpool`."""
    cut = list(argv).index("--")
    args = child.arguments("survey", argv[:cut])
    child.start(args.parent)
    child.outlast_sigterm()
    child.log_to_stderr("survey", args)
    channel = child.control_channel(args.control_fd)
    try:
        message = to_message(observe(config_of(parse(argv[cut + 1 :])), os.environ))
    except (ConfigError, StartError, WrongUsage) as exc:
        message = {"op": "refused", "error": str(exc)}
    channel.send(message)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
