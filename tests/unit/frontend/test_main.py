"""The module that a front-end process runs."""

from __future__ import annotations

import gc
import importlib
import sys


def test_garbage_is_collected_again_once_the_modules_are_there() -> None:
    sys.modules.pop("batchpool.frontend.__main__", None)
    try:
        importlib.import_module("batchpool.frontend.__main__")
        assert gc.isenabled()
    finally:
        gc.enable()
