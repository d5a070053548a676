"""The process that loads one model and warms it up for `batchpool check --load`, and exits.

Its report (`batchpool/worker/report.py`) has:

    load_s     seconds of import, load and warm-up
    rows       of the slowest batch of the warm-up; of a generator 1
    batch_s    seconds of that batch, or of a generator's slowest step
    sequences  of a generator, how many run at once; else 0
    kv_tokens  of a generator, how many tokens all of them may have, 0 for any number; else 0
    unloaded   whether `unload` ended in its time
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from typing import Any

from batchpool.core.tensors.spec import ModelSpec
from batchpool.core.tensors.stages import Stage
from batchpool.process.bootstrap import start
from batchpool.worker.loaded_generator import LoadedGenerator, load_generator
from batchpool.worker.loaded_model import LoadedModel, Unload, load_model
from batchpool.worker.report import print_report


def try_out(import_name: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Load a model, warm it up, unload it, and tell the times. Raises what its code raises."""
    unloads: list[Unload] = []
    stage, spec = Stage(settings["stage"]), ModelSpec.from_wire(settings["spec"])
    begun_s = time.monotonic()
    limits = {"sequences": 0, "kv_tokens": 0}
    found: LoadedModel | LoadedGenerator
    try:
        if spec.generates:
            found = load_generator(
                spec,
                import_name,
                settings["device"],
                settings["max_batch"],
                settings["options"],
                unloads.append,
            )
            generator = found.generator
            limits = {"sequences": generator.sequences, "kv_tokens": generator.kv_tokens}
        else:
            found = load_model(
                spec,
                import_name,
                settings["device"],
                settings["max_batch"],
                settings["batch_sizes"],
                settings["options"],
                unloads.append,
                stage,
                settings["max_elements"],
                settings["fused_rows"],
            )
        took_s = time.monotonic() - begun_s
    finally:
        timeout_s = settings["unload_timeout_s"]
        ended = [_ends(unload, timeout_s) for unload in reversed(unloads)]
    slowest = found.slowest
    return {
        "load_s": took_s,
        "rows": slowest.rows,
        "batch_s": slowest.seconds,
        **limits,
        "unloaded": all(ended),
    }


def _ends(unload: Unload, timeout_s: float) -> bool:
    """Undo a load; False where that takes too long. Its errors are printed, as a worker logs
    them."""

    def run() -> None:
        try:
            unload()
        except BaseException:
            traceback.print_exc()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(timeout_s)
    return not thread.is_alive()


def main(argv: Sequence[str]) -> int:
    """`python -m batchpool.worker.trial MODULE:CLASS PARENT SETTINGS`: print the report.

    SETTINGS: a JSON object with `options`, `spec`, `stage`, `device`, `max_batch`, `batch_sizes`,
    `max_elements`, `fused_rows` and `unload_timeout_s`. The exit status is 0 if the model is
    fit to serve, else 1.
    """
    import_name, parent, settings = argv
    start(int(parent))
    code = print_report(lambda: try_out(import_name, json.loads(settings)), traced=True)
    sys.stderr.flush()
    os._exit(code)  # whatever the model has left running


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
