"""The peer infinity: its environment, and its server with the same weights."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.embed.bare import model_folder
from bench.peers.envs import DEFAULT, commanded, requirements
from bench.support.serving import free_port

NAME = "infinity"
# As a pool sets it for its workers: threads that wait for one another sleep. Loops that spin would
# take the cores from whatever else is measured.
PASSIVE = {"OMP_WAIT_POLICY": "PASSIVE"}
_READY = "installed"  # a copy of the requirements that the environment was made with
_START_S = 300.0
_END_S = 10.0


def folder_of(device: str, envs: Path = DEFAULT) -> Path:
    """Of the environment for "cpu" or "cuda"."""
    return envs / (NAME if device == "cpu" else f"{NAME}-{device}")


def pinned(device: str) -> str:
    """The packages with their versions; torch without "+cpu" for a GPU."""
    text = requirements(NAME).read_text()
    return text if device == "cpu" else text.replace("+cpu", "")


def missing(device: str, envs: Path = DEFAULT) -> str:
    """Why it cannot run; "" if it can."""
    how = f"python -m bench.embed setup --device {device}"
    made_with = folder_of(device, envs) / _READY
    if not made_with.exists():
        return f"infinity is not installed ({how})"
    if made_with.read_text() != pinned(device):
        return f"infinity is installed with other versions ({how})"
    return ""


def setup(device: str, envs: Path = DEFAULT) -> None:
    """Make the environment. RuntimeError with pip's last words where that fails."""
    folder = folder_of(device, envs)
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    commanded(sys.executable, "-m", "venv", str(folder))
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(pinned(device))
        file.flush()
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "-q", "-r", file.name]
        commanded(*pip)
    (folder / _READY).write_text(pinned(device))


@contextmanager
def serving(
    device: str, threads: int, log: Path, envs: Path = DEFAULT
) -> Iterator[tuple[int, int]]:
    """Its server, ready: (port, pid). threads: with which it computes on the CPU."""
    port = free_port()
    command = [str(folder_of(device, envs) / "bin" / "infinity_emb"), "v2", "--engine", "torch"]
    command += ["--model-id", model_folder(), "--served-model-name", "minilm"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--batch-size", "64"]
    command += ["--device", device, "--no-bettertransformer", "--log-level", "warning"]
    command += ["--dtype", "float32" if device == "cpu" else "float16"]
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    quiet = {"DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1", "INFINITY_ANONYMOUS_USAGE_STATS": "0"}
    kept |= {**quiet, **PASSIVE, "OMP_NUM_THREADS": str(threads)}
    with tempfile.TemporaryDirectory() as cwd, log.open("wb") as out:
        process = subprocess.Popen(command, env=kept, cwd=cwd, stdout=out, stderr=out)
        try:
            _await_ready(process, port, log)
            yield port, process.pid
        finally:
            process.terminate()
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _await_ready(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    until_s = time.monotonic() + _START_S
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
                if answer.status == 200:
                    return
        except (OSError, urllib.error.URLError):
            pass
        if process.poll() is not None or time.monotonic() > until_s:
            words = log.read_text(errors="replace").strip().splitlines() or ["it said nothing"]
            raise RuntimeError(f"infinity does not serve: {words[-1][:300]}")
        time.sleep(0.1)
