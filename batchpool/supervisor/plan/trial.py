"""A trial of a model in a child process: loaded on its device and warmed up as in a worker."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass

from batchpool.core.config.schema import ModelConfig
from batchpool.process.python_command import python_command
from batchpool.supervisor.plan.plan import ModelPlan
from batchpool.supervisor.plan.probe_model import report_of


@dataclass(frozen=True)
class Trial:
    """The times of a trial. rows, batch_s: of the slowest batch. warning: "" for none."""

    device: str
    load_s: float
    rows: int
    batch_s: float
    warning: str

    def text(self) -> str:
        """The trial in one line."""
        return (
            f"on {self.device} in {self.load_s:.1f} s; a batch of {self.rows} rows takes"
            f" {self.batch_s * 1e3:.3g} ms"
        )


def try_model(
    model: ModelPlan, load_timeout_s: float, env: Mapping[str, str] | None = None
) -> Trial:
    """Load a model as its first worker would, and run its warm-up; it is unloaded after that.

    env: of the child, default that of this process. Raises StartError with the reason.
    """
    worker, config = model.workers[0], model.config
    settings = {
        "spec": model.spec.to_wire(),
        "device": worker.device,
        "max_batch": config.max_batch,
        "batch_sizes": list(config.batch_sizes),
    }
    command = [*python_command("batchpool.worker.trial"), config.import_name]
    base = dict(os.environ if env is None else env)
    report = report_of(
        config.import_name,
        [*command, str(os.getpid()), json.dumps(settings)],
        {**base, **worker.settings(base)},
        load_timeout_s,
        "loading and warming it up",
    )
    rows, batch_s = int(report["rows"]), float(report["batch_s"])
    warning = slow_batch_warning(config, rows, batch_s)
    return Trial(worker.device, float(report["load_s"]), rows, batch_s, warning)


def slow_batch_warning(config: ModelConfig, rows: int, seconds: float) -> str:
    """The warning of a batch that took longer in the warm-up than a batch may take, else ""."""
    if seconds <= config.batch_timeout_s:
        return ""
    return (
        f"a batch of {rows} rows took {seconds:.3g} s in the warm-up, longer than"
        f" batch_timeout_s = {config.batch_timeout_s:g}: its worker would be taken for stuck and"
        " restarted; raise batch_timeout_s or lower max_batch"
    )
