"""A plugin of coverage, by which workers and batchers write what they have run every half second.

Tests kill workers, and the supervisor ends the batcher by SIGKILL, since it holds nothing that must
be put away; a process that is killed writes nothing any more.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping

import coverage
from coverage.plugin_support import Plugins

INTERVAL_S = 0.5
KILLED = {"batchpool.worker", "batchpool.batcher"}


def coverage_init(registry: Plugins, options: Mapping[str, object]) -> None:
    if KILLED.intersection(sys.orig_argv):
        threading.Thread(target=_save_often, name="coverage", daemon=True).start()


def _save_often() -> None:
    while True:
        time.sleep(INTERVAL_S)
        if (current := coverage.Coverage.current()) is not None:
            current.save()
