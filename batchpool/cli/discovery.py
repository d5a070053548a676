"""`python -m batchpool.cli.discovery ... -- serve ...`: discovers the next plan, for a reload.

The supervisor starts it with a control channel and its own command line, so that reading files and
probing models does not hold up the supervisor. It sends `ConfigurationRead` as soon as it has read
the configuration, so that a reload which the pool must refuse ends there; then `Discovered`, or
instead of either `DiscoveryFailed`, and ends.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from batchpool.cli.config_source import config_of
from batchpool.cli.parser import WrongUsage, parse
from batchpool.control.edges import FromDiscovery
from batchpool.control.process_messages import DiscoveryFailed
from batchpool.core.errors import ConfigError, StartError
from batchpool.process import bootstrap
from batchpool.supervisor.plan.discover import configuration_read, discover, to_message


def main(argv: Sequence[str]) -> int:
    """Discover and send the result. argv: the flags of every child, "--", the command line."""
    cut = list(argv).index("--")
    args = bootstrap.arguments("discovery", argv[:cut])
    bootstrap.start(args.parent)
    bootstrap.outlast_sigterm()
    bootstrap.log_to_stderr("discovery", args)
    channel = bootstrap.control_channel(args.control_fd)
    try:
        config = config_of(parse(argv[cut + 1 :]))
        channel.send(configuration_read(config))
        message: FromDiscovery = to_message(discover(config, os.environ))
    except (ConfigError, StartError, WrongUsage) as exc:
        message = DiscoveryFailed(str(exc))
    channel.send(message)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
