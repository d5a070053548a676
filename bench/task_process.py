"""CPU of the task process alone, by the number of callers; of two checkouts in turns.

    python -m bench.task_process [--callers 1 4 64] [--turns 3] [--against CHECKOUT] [--save FILE]

Everything of the process but its lane runs: its socket, messages, the store on a disk, the runner,
whose engine only says what the rows are. Each caller submits a task of 2 KB, waits for its result
by long poll, says that it has it, and goes on. The callers' own CPU, about 20 us a task, is counted
too. Other programs change how many share a commit, and a checkout that is slower has fewer
callers waiting at once: figures of one caller are those that the machine changes least.
"""

from __future__ import annotations

import asyncio
import os
import socket
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.support.two_checkouts import in_turns, parser_of, use

_TASKS = {1: 600, 4: 1500}  # of one figure, by callers
_TASKS_OF_MANY = 4000
_WIDTH = 512
_WAIT_MS = 30_000


def cpu_us_per_task(callers: int) -> tuple[float, float]:
    """CPU (us) and commits of one task."""
    import uvloop

    with tempfile.TemporaryDirectory(prefix="bp-task-process-") as folder:
        return uvloop.run(_measured(Path(folder), callers))


async def _measured(folder: Path, callers: int) -> tuple[float, float]:
    import msgspec
    import numpy as np

    from batchpool.client.pool_facts import ModelFacts
    from batchpool.control.edges import TASK_REPLIES
    from batchpool.control.frames import FrameReader, frame_of
    from batchpool.control.task_messages import CollectResult, MarkRead, SubmitTask, TaskResult
    from batchpool.core.tensors.rows import Rows
    from batchpool.core.tensors.spec import ModelSpec, Tensor
    from batchpool.tasks.alerts import Alerts
    from batchpool.tasks.answers import TaskAnswers
    from batchpool.tasks.committer import Committer
    from batchpool.tasks.ends import Ends
    from batchpool.tasks.metrics import TaskMetrics
    from batchpool.tasks.record import StoreLimits
    from batchpool.tasks.runner import Runner
    from batchpool.tasks.server import TaskServer
    from batchpool.tasks.settings import TaskSettings
    from batchpool.tasks.sqlite import SqliteStore
    from batchpool.tasks.task_ends import TaskEnds
    from batchpool.wire.codec import Codec
    from batchpool.wire.task_form import pack_answer, pack_input

    spec = ModelSpec(
        "m", "numpy", (Tensor("x", "float32", (_WIDTH,)),), (Tensor("y", "float32", (_WIDTH,)),)
    )

    class Engine:
        async def facts(self, model: str) -> ModelFacts:
            return facts

        async def infer(self, model: str, inputs: Any, *more: Any) -> dict[str, list[Any]]:
            await asyncio.sleep(0)
            return {"y": list(inputs["x"] * 2 + 1)}

        async def close(self) -> None:
            """Nothing to let go of."""

    def clock_ms() -> int:
        return time.time_ns() // 1_000_000

    facts = ModelFacts(0, spec, 0.9, 30.0, 64)
    limits = StoreLimits(10**6, 2**32, 3_600_000, 60_000, evict_on_read=True)
    settings = TaskSettings(limits, 2**20, 10**8, 3, 512, "")
    metrics, ends = TaskMetrics(), Ends(is_alone=True)
    store = SqliteStore(folder / "tasks", limits)
    committer = Committer(store, clock_ms, metrics.committed)
    alerts = Alerts("", time.monotonic)
    task_ends = TaskEnds(committer, 3, ends, metrics, alerts, clock_ms)
    runner = Runner(committer, Engine(), settings, task_ends, metrics, clock_ms)
    answers = TaskAnswers(committer, runner, settings, ends, metrics, clock_ms, "")
    path, server = str(folder / "s"), TaskServer(answers)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    listener.setblocking(False)
    await server.listen(listener)
    work = asyncio.create_task(runner.run())
    reader, writer = await asyncio.open_unix_connection(path)
    asked: dict[int, asyncio.Future[Any]] = {}
    rows = np.random.default_rng(1).random((1, _WIDTH), dtype=np.float32)
    request = Codec(spec).parse({b"inference-header-content-length": b"0"}, rows.tobytes())
    packed = msgspec.Raw(pack_input(Rows(1, {"x": rows}, {})))
    answer, right = msgspec.Raw(pack_answer(request)), (rows * 2 + 1).tobytes()
    count = 0

    async def listen() -> None:
        frames = FrameReader(TASK_REPLIES)
        while piece := await reader.read(1 << 18):
            for number, message in frames.feed(piece):
                asked.pop(number).set_result(message)

    async def ask(message: Any) -> Any:
        nonlocal count
        count += 1
        number = count
        reply = asked[number] = asyncio.get_running_loop().create_future()
        writer.write(frame_of(number, message))
        return await reply

    async def caller(name: int, tasks: int) -> None:
        read: list[str] = []
        for _ in range(tasks):
            message = SubmitTask(
                os.urandom(16), clock_ms(), "m", 1, packed, answer, f"client {name % 4}"
            )
            kept = await ask(message)
            result = await ask(CollectResult(kept.task.id, "", _WAIT_MS))
            if not isinstance(result, TaskResult) or not result.body.endswith(right):
                raise SystemExit(f"a wrong result: {result!r:.200}")
            read.append(kept.task.id)
            if len(read) == 16:
                await ask(MarkRead(tuple(read)))
                read.clear()

    async def all_callers(tasks: int) -> None:
        await asyncio.gather(*(caller(n, tasks // callers) for n in range(callers)))

    listening = asyncio.create_task(listen())
    await all_callers(4 * callers)
    tasks = _TASKS.get(callers, _TASKS_OF_MANY) // callers * callers
    commits_of = metrics.times["task_commit_seconds"][""]
    commits = sum(commits_of[:-1])
    begun_s = time.process_time()
    await all_callers(tasks)
    used_s = time.process_time() - begun_s
    commits = sum(commits_of[:-1]) - commits
    await runner.stop()
    await work
    listening.cancel()
    writer.close()
    await committer.close()
    return used_s / tasks * 1e6, commits / tasks


def main() -> None:
    parser = parser_of(__doc__, turns=3)
    parser.add_argument("--callers", type=int, nargs="+", default=[1, 4, 64])
    args = parser.parse_args()
    if args.one:
        use(args.one)
        print(*cpu_us_per_task(args.callers[0]))
        return
    from bench.support.machine import report

    rows: dict[str, Any] = {}
    for callers in args.callers:
        given = ["--callers", str(callers)]
        figures = in_turns("bench.task_process", given, args.against, args.turns)
        rows[f"{callers} callers"] = {
            name: {
                "median_us": round(statistics.median([cpu_us for cpu_us, _ in of])),
                "least_us": round(min(of)[0]),
                "most_us": round(max(of)[0]),
                "commits_a_task": round(statistics.median([commits for _, commits in of]), 2),
            }
            for name, of in figures.items()
        }
    report("the task process alone, CPU a task", rows, args.save)


if __name__ == "__main__":
    main()
