"""What a model is, learnt from a child process: nobody but a worker imports a user's code."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

from batchpool.core.errors import StartError
from batchpool.core.tensors.spec import ModelSpec
from batchpool.shm.resource_errors import text_of

_COMMAND = (sys.executable, "-m", "batchpool.worker.describe")


@dataclass(frozen=True)
class ProbedModel:
    """A model's tensors, and whether its framework could use a GPU (torch with CUDA built in)."""

    import_name: str
    spec: ModelSpec
    cuda: bool


def describe(
    import_name: str,
    env: Mapping[str, str] | None = None,
    timeout_s: float = 600.0,
    command: Sequence[str] = _COMMAND,
) -> ProbedModel:
    """Ask a child process (worker/describe.py) what MODULE:CLASS is.

    env: the child's environment, default ours. Raises StartError naming the model and the
    cause: it cannot be imported, is no model, ended the process, or took over `timeout_s`.
    The child dies with the calling thread, which should be the main one.
    """
    # Files, not pipes: a grandchild that outlives the child would keep a pipe open.
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        try:
            code = subprocess.run(
                [*command, import_name, str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=dict(os.environ if env is None else env),
                timeout=timeout_s,
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            raise StartError(
                f"model {import_name}: importing it took more than {timeout_s:g} s"
            ) from None
        except OSError as exc:
            raise StartError(f"model {import_name} cannot be imported: {text_of(exc)}") from exc
        form = _answer_in(_text_of(out))
        if form is None:
            raise StartError(f"model {import_name}: {_ending(code, _text_of(err))}")
    if not form["ok"]:
        raise StartError(f"model {import_name}: {form['error']}")
    return ProbedModel(import_name, ModelSpec.from_wire(form["spec"]), bool(form["cuda"]))


def _text_of(stream: IO[bytes]) -> str:
    stream.seek(0)
    return stream.read().decode("utf-8", "replace")


def _answer_in(text: str) -> dict[str, Any] | None:
    """The JSON object on the last line; None when the child ended without one."""
    lines = text.splitlines()
    try:
        form = json.loads(lines[-1]) if lines else None
    except ValueError:
        return None
    return form if isinstance(form, dict) and "ok" in form else None


def _ending(code: int, err: str) -> str:
    """How a child ended that gave no answer, with the last line it wrote."""
    if code < 0:
        try:
            how = f"importing it killed the process with {signal.Signals(-code).name}"
        except ValueError:
            how = f"importing it killed the process with signal {-code}"
    else:
        how = f"importing it ended the process with exit status {code}"
    lines = [line.strip() for line in err.splitlines() if line.strip()]
    return f"{how}; its last line: {lines[-1][:300]}" if lines else how
