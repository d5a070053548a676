"""The command line: a command a file; `parser` knows them all, `outcome` what they end in."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import nullcontext

from batchpool.supervisor.host.signals import hangups_kept


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit status. argv: without the program's name."""
    words = sys.argv[1:] if argv is None else list(argv)
    with hangups_kept() if words[:1] == ["serve"] else nullcontext():
        # Only now: it takes longer than all that is needed before.
        from batchpool.cli.exit_status import run

        return run(words)


__all__ = ["main"]
