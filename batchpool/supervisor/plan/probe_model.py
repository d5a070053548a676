"""Probes a model class in a child process: only workers and these children import user code."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Any

from batchpool.core.config.options import texts_of
from batchpool.core.config.schema import ModelConfig
from batchpool.core.errors import ConfigError, StartError
from batchpool.core.tensors.spec import ModelSpec
from batchpool.process.python_command import package_environment, python_command
from batchpool.shm.resource_errors import text_of

_COMMAND = tuple(python_command("batchpool.worker.describe"))
_OPTION_CHECK = tuple(python_command("batchpool.worker.option_check"))


@dataclass(frozen=True)
class ProbedModel:
    """A model: its tensors. cuda: its framework can use GPUs, as a torch built with CUDA. options:
    as the class takes them. of_class: whether all models of the class without options are so."""

    import_name: str
    spec: ModelSpec
    cuda: bool
    options: dict[str, Any] = field(default_factory=dict)
    of_class: bool = False


def probe_model(
    model: ModelConfig,
    env: Mapping[str, str] | None = None,
    timeout_s: float = 600.0,
    command: Sequence[str] = _COMMAND,
) -> ProbedModel:
    """Make an instance of a model in a child process (`batchpool/worker/describe.py`) and return
    what it declares, and its options with the types of the class.

    env: the child's environment, default that of this process. Raises, naming the model and the
    cause, ConfigError for options or a declaration that cannot work, and StartError for a model
    that cannot be imported, is none, ended the process, or took over `timeout_s`. The child ends
    with the calling thread, which should be the main one.
    """
    settings = {"name": model.name, "options": model.options, "texts": texts_of(model.options)}
    words = [*command, model.import_name, str(os.getpid()), json.dumps(settings)]
    result = report_of(model_label(model), words, env, timeout_s)
    spec = ModelSpec.from_wire(result["spec"])
    cuda, of_class = bool(result["cuda"]), bool(result["of_class"])
    return ProbedModel(model.import_name, spec, cuda, dict(result["options"]), of_class)


def check_ready_options(
    models: Sequence[ModelConfig], env: Mapping[str, str], timeout_s: float
) -> None:
    """Check the options of ready models by their classes alone, in a child process
    (`batchpool/worker/option_check.py`) that reads no file of theirs.

    Raises, naming the first that is wrong, ConfigError; and StartError as `probe_model`.
    """
    forms = [
        {"import": model.import_name, "options": model.options, "texts": texts_of(model.options)}
        for model in models
    ]
    words = [*_OPTION_CHECK, str(os.getpid()), json.dumps(forms)]
    label = ", ".join(model_label(model) for model in models)
    result = report_of(label, words, env, timeout_s, "reading its options")
    if result["error"]:
        raise ConfigError(f"model {model_label(models[result['wrong']])}: {result['error']}")


def model_label(model: ModelConfig) -> str:
    """A model in messages about it: its class, behind the name that it is given, if it is."""
    return f"{model.name} ({model.import_name})" if model.name else model.import_name


def report_of(
    label: str,
    command: Sequence[str],
    env: Mapping[str, str] | None,
    timeout_s: float,
    doing: str = "importing it",
    *,
    shown: bool = False,
) -> dict[str, Any]:
    """The report (`batchpool/worker/report.py`) of a child process that runs a model's code.

    label: see `model_label`. doing: the purpose of the child, for messages. shown: its standard
    error is this process's. Raises ConfigError and StartError as `probe_model`.
    """
    # Files and not pipes: a grandchild that outlives the child would keep a pipe open.
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        try:
            code = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=None if shown else err,
                env=package_environment(dict(os.environ if env is None else env)),
                timeout=timeout_s,
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            raise StartError(f"model {label}: {doing} took more than {timeout_s:g} s") from None
        except OSError as exc:
            raise StartError(f"model {label} cannot be imported: {text_of(exc)}") from exc
        result = _last_json(_text_of(out))
        if result is None:
            raise StartError(f"model {label}: {_exit_text(code, _text_of(err), doing)}")
    if not result["ok"]:
        kind = ConfigError if result.get("configuration") else StartError
        raise kind(f"model {label}: {result['error']}")
    return result


def _text_of(stream: IO[bytes]) -> str:
    stream.seek(0)
    return stream.read().decode("utf-8", "replace")


def _last_json(text: str) -> dict[str, Any] | None:
    """The JSON object on the last line; None when the child ended without one."""
    lines = text.splitlines()
    try:
        result = json.loads(lines[-1]) if lines else None
    except ValueError:
        return None
    return result if isinstance(result, dict) and "ok" in result else None


def _exit_text(code: int, err: str, doing: str) -> str:
    """The end of a child without a result in words, with the last line it wrote."""
    if code < 0:
        try:
            how = f"{doing} killed the process with {signal.Signals(-code).name}"
        except ValueError:
            how = f"{doing} killed the process with signal {-code}"
    else:
        how = f"{doing} ended the process with exit status {code}"
    lines = [line.strip() for line in err.splitlines() if line.strip()]
    return f"{how}; its last line: {lines[-1][:300]}" if lines else how
