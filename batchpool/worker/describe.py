"""The process that makes one model, prints its declaration, and exits.

It runs in a worker's environment and calls `__init__`, but not `load`, so that the supervisor can
plan a pool and the front ends can serve its metadata without importing a user's code. The
tokenizer and the chat template of a generator are read as front ends will read them. Its report
(`batchpool/worker/report.py`) has:

    spec      ModelSpec.to_wire
    cuda      whether the framework has CUDA
    options   as the class takes them, as plain values
    of_class  whether another instance, without options, would declare the same tensors
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from batchpool.core.config.options import typed_options
from batchpool.core.config.ready_models import extras_of
from batchpool.core.errors import ConfigError
from batchpool.core.tensors.spec import ModelSpec
from batchpool.model import Model, make_instance, spec_of
from batchpool.process.bootstrap import leave, start
from batchpool.text.text_model import TextModel
from batchpool.worker.backends.select import has_cuda
from batchpool.worker.load import load_class
from batchpool.worker.options import converted_options, plain_options
from batchpool.worker.report import print_report


def describe(
    import_name: str, name: str = "", options: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The declaration of one model. Raises what its code raises.

    name: by which it is served, "" for the name that its class says. options: arguments of its
    `__init__`, plain values or `OptionText`.
    """
    cls = load_class(import_name)
    arguments = converted_options(cls, options or {})
    spec = spec_of(make_instance(cls, name, arguments))
    cuda = has_cuda(spec, extras_of(import_name))
    if spec.text is not None:
        TextModel(spec.text, spec.inputs[0].max_shape[0])  # so that the pool does not start in vain
    return {
        "spec": spec.to_wire(),
        "cuda": cuda,
        "options": plain_options(arguments),
        "of_class": cls.__init__ is object.__init__ and _declares(cls, spec),
    }


def _declares(cls: type[Model], spec: ModelSpec) -> bool:
    """True if the class alone declares what its instance does."""
    try:
        return replace(spec_of(cls), name=spec.name) == spec
    except ConfigError:  # its tensors are properties, which a class does not have
        return False


def _described(import_name: str, settings: dict[str, Any]) -> dict[str, Any]:
    options = typed_options(settings["options"], settings["texts"])
    return describe(import_name, settings["name"], options)


def main(argv: Sequence[str]) -> int:
    """`python -m batchpool.worker.describe MODULE:CLASS [PARENT [SETTINGS]]`: print the report.

    Returns 0 if the model could be described, 1 if not, 2 for wrong arguments. PARENT: the pid of
    the process whose death ends this one; left out when started by hand. SETTINGS: a JSON object
    with `name`, `options`, and the keys of those that are `texts` of the command line.
    """
    if len(argv) not in (1, 2, 3):
        usage = "batchpool.worker.describe MODULE:CLASS [PARENT [SETTINGS]]"
        print(f"usage: {usage}", file=sys.stderr)
        return 2
    if len(argv) > 1:
        start(int(argv[1]))
    settings = json.loads(argv[2]) if len(argv) > 2 else {"name": "", "options": {}, "texts": []}
    return print_report(lambda: _described(argv[0], settings))


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
