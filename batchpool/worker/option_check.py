"""The process that checks the options of ready models before anything of them is read.

The classes of ready models are batchpool's own, and importing them loads no framework, so that the
option of the last of many models is refused before the first of them is probed, which takes seconds
or minutes each. Its report (`batchpool/worker/report.py`) has `wrong`: which model it was, and
`error`; -1 and "" where all options fit.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from batchpool.core.config.options import typed_options
from batchpool.core.errors import ConfigError
from batchpool.process.bootstrap import leave, start
from batchpool.worker.load import load_class
from batchpool.worker.options import converted_options
from batchpool.worker.report import print_report


def first_wrong(models: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The first of these models with an option that its class does not take so. models: `import`
    MODULE:CLASS, `options` and `texts`, the keys of those that came as texts, of each."""
    for number, model in enumerate(models):
        options = typed_options(model["options"], model["texts"])
        try:
            converted_options(load_class(model["import"]), options)
        except ConfigError as exc:
            return {"wrong": number, "error": str(exc)}
    return {"wrong": -1, "error": ""}


def main(argv: Sequence[str]) -> int:
    """`python -m batchpool.worker.option_check PARENT MODELS`: print the report.

    PARENT: the pid of the process whose death ends this one. MODELS: a JSON list.
    """
    if len(argv) != 2:
        print("usage: batchpool.worker.option_check PARENT MODELS", file=sys.stderr)
        return 2
    start(int(argv[0]))
    return print_report(lambda: first_wrong(json.loads(argv[1])))


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
