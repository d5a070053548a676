"""The command line: a file for each command, `parser` for its flags, `exit_status` for its end."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import nullcontext

from batchpool.supervisor.host.signals import hangups_kept


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit status. argv: without the program's name."""
    words = sys.argv[1:] if argv is None else list(argv)
    serves = words[:1] == ["serve"]
    with hangups_kept() if serves else nullcontext():
        # Imported only now, since it takes long: a SIGHUP before it is kept already.
        from batchpool.cli.exit_status import run

        code = run(words)
    if serves and argv is None:
        from batchpool.process.bootstrap import leave

        leave(code)
    return code


__all__ = ["main"]
