"""The HTTP part of the scaling benchmark: the MLP behind several front ends, raw 2 KiB rows."""

from __future__ import annotations

import itertools
import tempfile
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from bench.load.http_load import Plan, Seen, offer, run_wrk
from bench.scaling.figures import Clock, Figures
from bench.scaling.local import Settings, rounds, tell_answers
from bench.scaling.pool import Pool, batches_between
from bench.scaling.workloads import judge_of
from bench.support.children import Child

_MODEL = "http"
_OPEN_CONNECTIONS = 256
_OPEN_SENDERS_MOST = 4


def run_http(settings: Settings, figures: Figures, clock: Clock) -> None:
    """All rounds, on the most GPUs."""
    n, of = settings.most, settings.workload("mlp")
    with ExitStack() as stack:
        clock.say(f"{_MODEL}: starting")
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        rows, right = folder / "rows.npy", folder / "right.npy"
        np.save(rows, of.make_rows())
        flags = ["--max-batch", str(settings.max_batches[0])]
        flags += ["--frontends", str(settings.frontends)]
        pool = stack.enter_context(settings.pool(of, n, flags))
        senders = [
            stack.enter_context(Child("bench.load.http_load")) for _ in range(settings.senders)
        ]
        with settings.bare("mlp", 0, rows) as bare:
            told = bare.ask("answers", path=str(right), batches=settings.batches)
        tell_answers(figures, _MODEL, told)
        pool.await_ready()
        path = f"/v2/models/{of.name}/infer"
        plan = Plan(
            port=pool.served.port,
            path=path,
            rows=str(rows),
            right=str(right),
            tolerance=told["tolerance"],
            head="",
            connections=0,
            seconds=settings.warm_s,
        )
        plan = replace(plan, head=head_of(plan))
        clock.say(f"{_MODEL}: ready, {settings.frontends} front ends, {len(senders)} senders")
        loads: dict[str, Callable[..., Seen]] = {}
        for connections, kind in itertools.product(settings.connections, settings.heads):
            closed = replace(plan, connections=connections, seconds=settings.seconds, heads=kind)
            name = f"{connections} connections, {kind} heads, closed loop"
            if settings.wrk:
                threads = min(settings.frontends, connections)
                loads[f"{name}, wrk"] = partial(run_wrk, closed, threads)
            else:
                loads[name] = partial(offer, senders, closed)
        some = senders[:_OPEN_SENDERS_MOST]
        opened = replace(
            plan,
            connections=max(len(some), min(_OPEN_CONNECTIONS, settings.connections[0])),
            seconds=2 * settings.seconds,
            rate_per_s=settings.rate_per_s,
            heads=settings.heads[0],
        )
        name = f"open loop, {opened.heads} heads, {settings.rate_per_s:,.0f} requests/s"
        loads[name] = partial(offer, some, opened)
        offer(senders, replace(plan, connections=settings.connections[0]))  # as a warm-up
        for number in rounds(settings, clock):
            clock.say(f"{_MODEL}: round {number + 1}")
            for name, load in loads.items():
                _take(name, load, pool, settings, figures)
            figures.save()


def head_of(plan: Plan) -> str:
    """The JSON before an answer's row; the first answer of all is judged here."""
    x = np.load(plan.rows)[:1]
    request = urllib.request.Request(
        f"http://127.0.0.1:{plan.port}{plan.path}",
        x.tobytes(),
        {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": "0"},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        body = answer.read()
        n = int(answer.headers["Inference-Header-Content-Length"])
    judge = judge_of(plan.right, plan.tolerance)
    y = np.frombuffer(body[n:], np.float32).reshape(1, -1)
    if not judge.error(0, y) <= judge.tolerance:
        raise RuntimeError("the first answer over HTTP is wrong")
    return str(body[:n].decode())


def _take(
    name: str, load: Callable[..., Seen], pool: Pool, settings: Settings, figures: Figures
) -> None:
    shares: dict[str, float] = {}

    def watch(start_ns: int, seconds: float) -> None:
        if settings.profile:
            shares.update(pool.shares(start_ns, seconds))

    n = settings.most
    before = pool.counts()
    seen = load(meanwhile=watch)
    after = pool.counts()
    figures.add(_MODEL, n, f"{name}: requests/s", seen.rate_per_s)
    for what in ("p50_ms", "p99_ms"):
        figures.add(_MODEL, n, f"{name}: {what}", getattr(seen, what))
    if "open" in name:
        figures.add(_MODEL, n, f"{name}: behind_p99_ms", seen.behind_p99_ms, quiet=True)
    for what, number in (("refused", seen.refused), ("failed", seen.failed)):
        figures.add(_MODEL, n, f"{name}: {what}", number, quiet=not number)
    if settings.profile:
        for who, share in shares.items():
            figures.add(_MODEL, n, f"{name}: cores, {who}", share, quiet=True)
        for what, value in batches_between(before, after).items():
            figures.add(_MODEL, n, f"{name}: {what}", value, quiet=True)
    figures.judged(_MODEL, seen.wrong, name)
