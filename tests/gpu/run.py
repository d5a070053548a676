"""Everything that only a GPU machine can show, in one run; saves JSON.

    python -m tests.gpu.run [--save FILE.json]

1. one worker per GPU, each seeing its own device and no other
2. CUDA_VISIBLE_DEVICES of the parent as a UUID and as a subset
3. rows that the model refuses; memory too small for a batch, and a row that breaks the CUDA context
4. how many copies a batch takes on every road in and out
5. CUDA graphs, which take certain batch sizes only
6. CUDA graphs of rows that vary in size: every row alone and in company
7. texts through both stages: tokenizers without a CUDA context, half precision, graphs
8. the MLP of the examples through local clients and HTTP: answers equal a direct call
9. rows per second of a local client, checked
10. a decoder's tokens by CUDA graphs and without, in single and half precision
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import time
import urllib.request
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

import batchpool as bp
from batchpool.client.control import ask_status
from batchpool.examples.mlp import MLP
from bench.support.machine import facts, report
from bench.support.serving import serving
from tests.gpu.copies import check_copies
from tests.gpu.generation import check_generation
from tests.gpu.stages import check_stages


def uuids() -> list[str]:
    """The UUIDs that nvidia-smi lists, in its order."""
    found = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True)
    return [line.split("UUID: ")[1].rstrip(")") for line in found.stdout.splitlines()]


def ask_where(pool: bp.Client, n: int = 400) -> tuple[Counter[str], set[str]]:
    """Where n single rows ran: {uuid: rows}, and the CUDA_VISIBLE_DEVICES of the workers."""

    def one(tag: int) -> Any:
        found = pool.infer("where", tag=np.array([tag]))
        assert found["tag"][0] == tag
        return found

    with ThreadPoolExecutor(16) as threads:
        answers = list(threads.map(one, range(n)))
    rows = Counter(f"GPU-{a['uuid'][0].decode()}" for a in answers)
    return rows, {a["visible"][0].decode() for a in answers}


def check_devices(gpus: list[str]) -> dict[str, Any]:
    """C61, C62: workers on the GPUs of the parent's list, by their UUIDs, and no other process has
    a context."""
    told: dict[str, Any] = {}
    # No waiting and batches of one row, so that the rows spread over the workers.
    flags = ("--max-batch", "1", "--max-wait-ms", "0", "--frontends", "1")
    with serving(["tests.gpu.models:Where"], *flags) as served, bp.Client(served.socket) as pool:
        rows, visible = ask_where(pool)
        assert set(rows) == set(gpus), f"{rows} ran on other GPUs than {gpus}"
        assert visible == {str(i) for i in range(len(gpus))}
        told["rows per GPU"] = dict(rows)
        told["processes with a CUDA context"] = contexts(served.pids())
    for name, value, expected in (
        ("a UUID", gpus[-1], [gpus[-1]]),
        ("a subset", str(len(gpus) - 1), [gpus[-1]]),
    ):
        os.environ["CUDA_VISIBLE_DEVICES"] = value
        try:
            with (
                serving(["tests.gpu.models:Where"], *flags) as served,
                bp.Client(served.socket) as pool,
            ):
                rows, visible = ask_where(pool, 50)
        finally:
            del os.environ["CUDA_VISIBLE_DEVICES"]
        assert sorted(rows) == expected, rows
        assert visible == {value}, visible
        told[f"CUDA_VISIBLE_DEVICES = {name}"] = f"ran on {', '.join(rows)}"
    return told


def contexts(pids: dict[str, int]) -> list[str]:
    """Which of the pool's processes have the CUDA driver's device files open."""
    found = []
    for name, pid in pids.items():
        opened = {os.path.realpath(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")}
        if any(path.startswith("/dev/nvidia") for path in opened):
            found.append(name)
    assert found, "no process has opened the driver"
    assert all(name.startswith("worker") for name in found), found
    return found


def direct(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A direct call of the model in this process, on the first GPU."""
    model = MLP()
    model.load("cuda:0")
    with torch.inference_mode():
        batch = bp.Batch(len(x), {"x": torch.from_numpy(x).cuda()})
        return np.asarray(model.infer(batch)["y"].cpu().numpy())


def check_mlp(seconds: float) -> dict[str, Any]:
    told: dict[str, Any] = {}
    x = np.random.default_rng(3).standard_normal((4096, 512), dtype=np.float32)
    flags = ("--max-wait-ms", "0", "--frontends", "1", "--max-batch", "64")
    with serving(["batchpool.examples.mlp:MLP"], *flags) as served:
        with bp.Client(served.socket) as pool:
            lone = pool.infer("mlp", x=x[:1])["y"]
            assert np.array_equal(lone, direct(x[:1])), "a lone row differs from the direct call"
            y = pool.infer("mlp", x=x)["y"]
            want = np.concatenate([direct(x[i : i + 64]) for i in range(0, len(x), 64)])
            scale = np.abs(want).max()
            error = float(np.abs(y - want).max() / scale)
            assert error < 2e-3, error
            told["lone row equals the direct call, bit for bit"] = True
            told["4096 rows, largest difference to direct batches of 64"] = error
            told["rows/s, one client, infer of 4096 rows"] = rate(
                lambda: pool.infer("mlp", x=x), len(x), seconds
            )
            took = []
            for _ in range(2000):
                start = time.perf_counter()
                pool.infer("mlp", x=x[:1])
                took.append((time.perf_counter() - start) * 1e6)
            took.sort()
            told["lone row p50, p99 us"] = [round(took[1000]), round(took[1980])]
        url = f"http://127.0.0.1:{served.port}/v2/models/mlp/infer"
        head = {
            "Content-Type": "application/octet-stream",
            "Inference-Header-Content-Length": "0",
        }
        request = urllib.request.Request(url, x[:3].tobytes(), head)
        with urllib.request.urlopen(request, timeout=30) as answer:
            body = answer.read()
            json_bytes = int(answer.headers["Inference-Header-Content-Length"])
        over_http = np.frombuffer(body[json_bytes:], np.float32).reshape(3, 512)
        assert np.abs(over_http - want[:3]).max() / scale < 2e-3
        told["three raw rows over HTTP"] = "right"
    return told


def rate(call: Any, rows: int, seconds: float) -> float:
    done, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        call()
        done += rows
    return round(done / (time.perf_counter() - start))


def check_errors() -> dict[str, Any]:
    """A model that raises fails its rows only; the worker and its stream live on."""
    with serving(["tests.gpu.models:Raises"], "--frontends", "1", "--max-wait-ms", "0") as served:
        pids = served.pids()
        with bp.Client(served.socket) as pool:
            good = np.ones((3, 4), dtype=np.float32)
            for _ in range(20):
                with pytest.raises(bp.ModelError, match="a negative row"):
                    pool.infer("raises", x=-good)
                assert np.array_equal(pool.infer("raises", x=good)["y"], good * 2 + 1)
        assert served.pids() == pids, "a worker was restarted"
    return {"a raising model": "20 errors, 20 right answers, no restart"}


def check_refusals() -> dict[str, Any]:
    """Rows that the model refuses among 64, by each way of refusing: the others are answered."""
    flags = ("--frontends", "1", "--max-wait-ms", "500", "--policy", "fixed")
    with serving(["tests.gpu.models:Refuses"], *flags) as served:
        pids = served.pids()
        with bp.Client(served.socket) as pool:
            for how, text in ((1, "named"), (2, "listed"), (3, "raised")):
                rows = [np.full((1, 4), i, np.float32) for i in range(64)]
                futures = [
                    pool.submit("refuses", x=x, how=[how * (i % 9 == 4)])
                    for i, x in enumerate(rows)
                ]
                for i, future in enumerate(futures):
                    error = future.exception(60)
                    if i % 9 == 4:
                        assert isinstance(error, bp.InvalidInput), error
                        assert str(error) == text
                    else:
                        found = future.result()
                        assert np.array_equal(found["y"], rows[i] * 2 + 1)
                        assert np.array_equal(found["z"], found["y"][:, :2])
                tally = ask_status(served.socket)["models"]["refuses"]
                assert tally["failed"] == tally["lost"] == 0
                assert bool(tally["retried"]) == (how == 3), "a named row costs no second run"
        assert served.pids() == pids, "a worker was restarted"
    return {"7 rows refused among 64, in three ways": "57 right answers each, no restart"}


def check_memory() -> dict[str, Any]:
    """64 rows of 4 GiB each in one batch: every row is answered, and the cap is learnt."""
    flags = ("--frontends", "1", "--max-wait-ms", "500", "--devices", "0")
    with serving(["tests.gpu.models:Hungry"], *flags) as served:
        pids = served.pids()
        with bp.Client(served.socket) as pool:
            found = pool.infer("hungry", tag=list(range(64)), gib=[4] * 64, timeout_s=60)
            assert found["tag"].tolist() == list(range(64))
            with pytest.raises(bp.ModelError, match="out of memory"):
                pool.infer("hungry", tag=[1], gib=[4000])
            assert pool.infer("hungry", tag=[2], gib=[1])["tag"].tolist() == [2]
        tally = ask_status(served.socket)["models"]["hungry"]
        assert served.pids() == pids, "a worker was restarted"
    rows = int(found["rows"].max())
    assert tally["max_batch"] <= 64 // 2
    return {
        "64 rows of 4 GiB at once": f"64 right answers, at most {rows} rows a batch,"
        f" cap {tally['max_batch']}, {tally['no_memory']} batches too large, no restart"
    }


def check_broken_context() -> dict[str, Any]:
    """A row that breaks the CUDA context among 64: it gets the error, the others answers."""
    flags = ("--frontends", "1", "--max-wait-ms", "500", "--devices", "0")
    with serving(["tests.gpu.models:Asserts"], *flags) as served, bp.Client(served.socket) as pool:
        futures = [
            pool.submit("asserts", at=[99 if i == 33 else i % 10], timeout_s=200) for i in range(64)
        ]
        start = time.perf_counter()
        for i, future in enumerate(futures):
            if i == 33:
                assert isinstance(future.exception(200), bp.WorkerLost)
            else:
                assert future.result(200)["found"].tolist() == [i % 10 * 100]
        took_s = time.perf_counter() - start
        rows = ask_status(served.socket)["processes"]
        (worker,) = [row for row in rows if row["name"].startswith("worker")]
        assert "device is broken" in worker["last_error"], worker
    return {
        "a row that breaks the CUDA context among 64": f"63 right answers and one error"
        f" after {worker['restarts']} restarts and {took_s:.1f} s"
    }


def check_batch_sizes() -> dict[str, Any]:
    """Requests of 1 to 150 rows from 16 threads; the graphs are for 8 and 64 rows."""
    flags = ("--frontends", "1", "--devices", "0", "--batch-sizes", "8,64")
    seen: Counter[tuple[int, int]] = Counter()
    with serving(["tests.gpu.models:Graphs"], *flags) as served, bp.Client(served.socket) as pool:

        def one(seed: int) -> None:
            n = (1, 3, 8, 20, 64, 150)[seed % 6]
            x = np.full((n, 256), seed, np.float32) + np.arange(n, dtype=np.float32)[:, None]
            ids = torch.full((n, seed % 17), float(seed % 5), dtype=torch.bfloat16)
            text = [b"%d" % seed] * n
            found = pool.infer("graphs", x=x, ids=ids, text=text)
            assert np.array_equal(found["y"], 2 * x)
            assert (found["sum"] == seed % 17 * (seed % 5)).all()
            assert found["text"].tolist() == text
            assert set(found["graphs"].tolist()) == {4}, "warm-up captures every graph"
            for size, rows in zip(found["n"].tolist(), found["rows"].tolist(), strict=True):
                assert size == (8 if rows <= 8 else 64)
            seen.update(zip(found["n"].tolist(), found["rows"].tolist(), strict=True))

        for seed in range(6):
            one(seed)
        with ThreadPoolExecutor(16) as threads:
            list(threads.map(one, range(600)))
    assert any(rows < size for size, rows in seen), "nothing was padded"
    return {"CUDA graphs for 8 and 64 rows": f"{sum(seen.values())} right rows"}


def check_dynamic_graphs() -> dict[str, Any]:
    """Rows of 1 to 128 tokens, each alone and all mixed, equal those of the network called with
    that row alone in single precision."""
    import torch

    from bench.support.ids_encoder import TOKENS_MOST, embed, make_encoder

    rng = np.random.default_rng(3)
    rows = [rng.integers(1000, 30_000, length) for length in range(1, TOKENS_MOST + 1)]
    encoder = make_encoder("cpu")
    with torch.inference_mode():
        expected = np.concatenate([
            embed(encoder, torch.from_numpy(row)[None], torch.tensor([[len(row)]])) for row in rows
        ])  # fmt: skip
    flags = ("--max-batch", "32", "--max-wait-ms", "1", "--devices", "0")
    begun_s = time.monotonic()
    with serving(["bench.support.ids_encoder:IdsEncoder"], *flags) as served:
        ready_s = time.monotonic() - begun_s
        with bp.Client(served.socket) as pool:
            worst = {}
            for name, groups in {
                "alone": [[at] for at in range(len(rows))],
                "mixed": [rng.permutation(len(rows)).tolist() for _ in range(20)],
                "pairs": [rng.choice(len(rows), 2, replace=False).tolist() for _ in range(100)],
            }.items():
                cosines = []
                for group in groups:
                    found = pool.infer("ids_encoder", ids=[rows[at] for at in group])["embedding"]
                    cosines.append(float((found * expected[group]).sum(axis=1).min()))
                worst[name] = round(min(cosines), 5)
                assert worst[name] > 0.999, (name, worst[name])
    return {"dynamic graphs, worst cosine": worst, "ready after, s": round(ready_s, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--save")
    parser.add_argument("--seconds", type=float, default=5)
    args = parser.parse_args()
    print(json.dumps(facts(), indent=1), flush=True)
    rows: dict[str, Any] = {}
    steps: tuple[Callable[[], dict[str, Any]], ...] = (
        lambda: check_devices(uuids()),
        check_errors,
        check_refusals,
        check_memory,
        check_broken_context,
        check_copies,
        check_batch_sizes,
        check_dynamic_graphs,
        check_stages,
        lambda: check_mlp(args.seconds),
        check_generation,
    )
    for step in steps:
        found = step()
        print(json.dumps(found, indent=1), flush=True)
        rows.update(found)
    report("The road on CUDA", rows, args.save)


if __name__ == "__main__":
    main()
