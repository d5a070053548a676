"""A trial of a model in a child process: loaded on its device and warmed up as in a worker."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass

from batchpool.core.config.server_table import ServerConfig
from batchpool.process.python_command import python_command
from batchpool.supervisor.plan.plan import ModelPlan, WorkerPlan
from batchpool.supervisor.plan.probe_model import model_label, report_of


@dataclass(frozen=True)
class Trial:
    """The times of a trial. rows, batch_s: of the slowest batch, or of a generator's slowest step.
    warnings: what serving it would suffer from. sequences, kv_tokens: of a generator, as it has set
    them; 0 of another model."""

    device: str
    load_s: float
    rows: int
    batch_s: float
    warnings: tuple[str, ...]
    sequences: int = 0
    kv_tokens: int = 0

    def text(self) -> str:
        """The trial in one line."""
        if self.sequences:
            kv = f" of {self.kv_tokens} tokens together" if self.kv_tokens else ""
            return (
                f"on {self.device} in {self.load_s:.1f} s: {self.sequences} sequences at once{kv};"
                f" the slowest step of its warm-up takes {_ms(self.batch_s)}"
            )
        return (
            f"on {self.device} in {self.load_s:.1f} s; its slowest batch, of {self.rows} rows,"
            f" takes {_ms(self.batch_s)}"
        )


def _ms(seconds: float) -> str:
    ms = seconds * 1e3
    return f"{ms:,.0f} ms" if ms >= 100 else f"{ms:.3g} ms"


def try_model(
    model: ModelPlan,
    server: ServerConfig,
    env: Mapping[str, str] | None = None,
    worker: WorkerPlan | None = None,
) -> Trial:
    """Load a model as a worker would, and run its warm-up; it is unloaded after that.

    worker: whose stage and device are tried; default: the first one of `infer`. env: of the child,
    default that of this process. What it prints and logs goes to standard error, as does the
    traceback of its failure. Raises StartError, or ConfigError, with the reason.
    """
    worker, config = worker or model.workers[0], model.config
    settings = {
        "options": config.options,
        "spec": model.declared.to_wire(),
        "stage": int(worker.stage),
        "device": worker.device,
        "max_batch": model.max_batch_of(worker),
        "batch_sizes": list(model.batch_sizes_of(worker)),
        "max_elements": config.max_batch_elements,
        "fused_rows": model.fused_rows,
        "unload_timeout_s": server.unload_timeout_s,
    }
    command = [*python_command("batchpool.worker.trial"), config.import_name]
    base = dict(os.environ if env is None else env)
    report = report_of(
        model_label(config),
        [*command, str(os.getpid()), json.dumps(settings)],
        {**base, **worker.settings(base)},
        server.load_timeout_s + server.unload_timeout_s,
        "loading and warming it up",
        shown=True,
    )
    rows, batch_s = int(report["rows"]), float(report["batch_s"])
    warnings = [slow_batch_warning(model, rows, batch_s)]
    if not report["unloaded"]:
        warnings.append(
            f"unload did not end within unload_timeout_s = {server.unload_timeout_s:g}: its worker"
            " would be killed there"
        )
    found = tuple(filter(None, warnings))
    limits = int(report["sequences"]), int(report["kv_tokens"])
    return Trial(worker.device, float(report["load_s"]), rows, batch_s, found, *limits)


def slow_batch_warning(model: ModelPlan, rows: int, seconds: float) -> str:
    """The warning of a batch that took longer in the warm-up than a batch may take, else ""."""
    config = model.config
    if seconds <= config.batch_timeout_s:
        return ""
    if model.spec.generates:
        return (
            f"a step took {seconds:.3g} s in the warm-up, longer than batch_timeout_s ="
            f" {config.batch_timeout_s:g}: its worker would be taken for stuck and restarted; raise"
            " batch_timeout_s"
        )
    return (
        f"a batch of {rows} rows took {seconds:.3g} s in the warm-up, longer than"
        f" batch_timeout_s = {config.batch_timeout_s:g}: its worker would be taken for stuck and"
        " restarted; raise batch_timeout_s or lower max_batch"
    )
