"""Tasks outlive every process: whatever is killed, each that was accepted ends once and right."""

from __future__ import annotations

import http.client
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.process.pool_under_test import ROOT, Pool, command, serving, toml, until
from tests.process.task_calls import (
    accepted,
    ended,
    probe_body,
    result,
    rows_body,
    state,
    submit,
    tags,
)
from tests.process.web import Answer, ask

KILLED = 120  # tasks of a test in which processes are killed


def tasks_at(folder: Path, **more: Any) -> dict[str, Any]:
    return {"tasks": True, "state_dir": str(folder), **more}


def once_more(call: Callable[[], Answer]) -> Answer:
    """The answer of a call that is repeated while its front end or the pool is away."""

    def answer() -> Answer | None:
        try:
            found = call()
        except (OSError, http.client.HTTPException):
            return None
        return None if found.status == 503 else found

    found: Answer = until(answer, "an answer")
    return found


def submitted(pool: Pool, tag: int) -> str:
    """The path of a task that takes a moment; its key makes repeated requests one task."""
    body = rows_body(tag=[tag], seconds=[0.002])
    answer = once_more(lambda: submit(pool, "probe", body, {"Idempotency-Key": f"tag-{tag}"}))
    assert answer.status == 202, answer
    return answer.headers["location"]


def collected(pool: Pool, path: str) -> list[int]:
    def look() -> Answer:
        found = ask(pool, f"{path}/result?wait_s=5")
        return found if found.status != 202 else Answer(503, {}, b"")

    return tags(once_more(look))


def kill_in_turn(pool: Pool, kinds: Sequence[str]) -> None:
    """Kill a process of each of these kinds, each time once there is one."""
    for kind in kinds:
        kill_one(pool, kind)


def kill_one(pool: Pool, kind: str) -> None:
    (pid, *_) = until(lambda: pool.pids(kind), f"a {kind} to kill")
    os.kill(pid, signal.SIGKILL)
    until(lambda: all(row["pid"] != pid for row in pool.status()["processes"]), "its end")


@pytest.mark.parametrize(
    "kinds",
    [
        ["tasks", "worker", "batcher", "frontend"],
        pytest.param(["tasks", "frontend", "tasks", "batcher"] * 4, marks=pytest.mark.long),
    ],
)
def test_every_task_ends_once_whatever_is_killed(tmp_path: Path, kinds: list[str]) -> None:
    """Complaints 9, 10 and 12: a killed process's tasks are neither stuck nor gone nor run into a
    second result."""
    model = {"import": "Probe", "max_batch": 4, "max_wait_ms": 0}
    with serving(model, server=tasks_at(tmp_path)) as pool, ThreadPoolExecutor(8) as threads:
        futures = [threads.submit(submitted, pool, tag) for tag in range(KILLED)]
        kill_in_turn(pool, kinds)
        paths = [future.result() for future in futures]
        assert len(set(paths)) == KILLED
        found = list(threads.map(lambda path: collected(pool, path), paths))
        assert found == [[tag] for tag in range(KILLED)]
        states = {state(pool, path)["state"] for path in paths}
        assert states == {"done"}


def test_tasks_go_on_after_the_pool_was_killed_or_stopped(tmp_path: Path) -> None:
    """Complaint 11: what is under way lives in the store, and not in the pool that began it."""
    server = tasks_at(tmp_path)
    with serving("Gated", server=server) as pool:
        port = pool.port
        stuck = accepted(pool, "gated", probe_body(1, gate=9))
        keyed = {"Idempotency-Key": "k"}
        paths = [accepted(pool, "gated", probe_body(2, gate=9), keyed)]
        done = accepted(pool, "gated", probe_body(3))
        until(lambda: state(pool, stuck)["state"] == "running", "the start of a task")
        pool.end_at_once()
    with serving("Gated", server=server, port=port) as pool:
        (pool.notes / "gate-9").touch()
        assert tags(result(pool, stuck)) == [1]
        assert tags(result(pool, done)) == [3], "an id from before the restart is known"
        assert ended(pool, paths[0])["state"] == "done"
        again = submit(pool, "gated", probe_body(2, gate=9), keyed)
        assert again.headers["idempotency-replayed"] == "true"
        slow = rows_body(tag=[5], seconds=[0.3], gate=[0])
        queued = [accepted(pool, "gated", slow) for _ in range(40)]
        until(lambda: any(state(pool, p)["state"] == "done" for p in queued), "the first end")
        assert pool.stop() == 0
    with serving("Gated", server=server, port=port) as pool:
        assert [tags(result(pool, path)) for path in queued] == [[5]] * 40


@pytest.mark.long
def test_a_model_that_a_reload_removes_leaves_dead_letters_that_run_after_it_is_back(
    tmp_path: Path,
) -> None:
    def configure(*models: str) -> None:
        settings = {"port": pool.port, "socket": pool.socket, "frontends": 1, **tasks_at(tmp_path)}
        tables = [{"import": f"tests.process.models:{model}", "devices": "cpu"} for model in models]
        (pool.folder / "pool.toml").write_text(toml(settings, tables))

    gated = {"import": "Gated", "max_batch": 1}
    with serving("Probe", gated, server=tasks_at(tmp_path)) as pool:
        pool.tracebacks_expected = True
        paths = [accepted(pool, "gated", probe_body(4, gate=1)) for _ in range(12)]
        configure("Probe")
        assert run(pool, "reload", "--no-wait").returncode == 0
        until(lambda: ask(pool, "/v2/models/gated").status == 404, "the end of the model")
        (pool.notes / "gate-1").touch()
        last = ended(pool, paths[-1])
        assert (last["state"], last["code"]) == ("failed", "not_found")
        assert result(pool, paths[-1]).refused == (404, "not_found")
        listed = run(pool, "dlq", "list", "--code", "not_found", "-n", "1000", "--json")
        assert '"model": "gated"' in listed.stdout
        shown = run(pool, "dlq", "show", listed.stdout.split('"letter": ')[1].partition(",")[0])
        assert '"tag": {"shape": [1], "data": [4]}' in shown.stdout
        exported = run(pool, "dlq", "export", "--all").stdout.splitlines()
        until(lambda: pool.status()["reload"] is None, "the end of the reload")
        configure("Probe", "Gated")
        assert run(pool, "reload").returncode == 0
        keep = exported[1:]
        numbers = [line.partition('"letter": ')[2].partition(",")[0] for line in keep]
        dropped = run(pool, "dlq", "drop", *numbers)
        assert dropped.stdout == f"dropped {len(keep)}\n"
        replayed = run(pool, "dlq", "replay", "--all").stdout.split()
        assert tags(result(pool, f"/v2/tasks/{replayed[1]}")) == [4]
        assert run(pool, "dlq", "list").stdout.split() == ["dead", "letters", "none"]
        assert run(pool, "dlq", "show", "1").returncode == 1
        assert replayed[1] in run(pool, "tasks", "show", replayed[1]).stdout
        assert '"state": "done"' in run(pool, "tasks", "list", "--json").stdout
        assert "store_bytes" in run(pool, "status").stdout


def run(pool: Pool, *words: str) -> subprocess.CompletedProcess[str]:
    """One command of `batchpool` for this pool."""
    config = str(pool.folder / "pool.toml")
    named = [config] if words[0] in ("reload", "status") else ["--config", config]
    return subprocess.run(
        command(*words, *named), cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )


def small_disk(folder: Path, mib: int) -> list[str]:
    """A command that runs another with a small file system at a folder."""
    wrapper = [
        "unshare", "-m", "sh", "-c",
        f'mount -t tmpfs -o size={mib}m tmpfs {folder} && exec "$0" "$@"',
    ]  # fmt: skip
    if shutil.which("unshare") is None:
        pytest.skip("unshare is not installed")
    tried = subprocess.run([*wrapper, "true"], capture_output=True, check=False)
    if tried.returncode:
        pytest.skip(f"no mount namespace here: {tried.stderr.decode().strip()}")
    return wrapper


def test_a_full_disk_refuses_new_tasks_and_loses_none(tmp_path: Path) -> None:
    """507 while it is full; what was accepted ends and is collected, and makes room again."""
    server = tasks_at(tmp_path, task_collect_grace_s=0)
    with serving("Gated", "Echo", server=server, wrapper=small_disk(tmp_path, 8)) as pool:
        text = b"x" * 4000
        large = b'{"instances": ["%s"]}' % b'","'.join([text] * 15)
        kept = [accepted(pool, "gated", probe_body(i, gate=1)) for i in range(3)]
        paths = []
        while (answer := submit(pool, "echo", large)).status == 202:
            paths.append(answer.headers["location"])
            assert len(paths) < 400
        assert answer.refused == (507, "storage_full")
        assert "retry-after" in answer.headers
        assert ask(pool, "/v2/health/ready").status == 200
        at_once = ask(pool, "/v2/models/echo/infer", large)
        assert at_once.status == 200, "requests that wait are none of its business"
        (pool.notes / "gate-1").touch()
        assert [tags(result(pool, path)) for path in kept] == [[0], [1], [2]]
        assert {result(pool, path).body for path in paths} == {at_once.body}
        again = until(
            lambda: (got := submit(pool, "echo", large)).status == 202 and got, "room again"
        )
        assert result(pool, again.headers["location"]).body == at_once.body


@pytest.mark.long
def test_a_worker_that_a_row_kills_ends_in_a_dead_letter(tmp_path: Path) -> None:
    """C70: a task whose worker died each time has failed, and says why."""
    deadly = {"import": "Deadly", "attempts": 1}
    with serving(deadly, server=tasks_at(tmp_path, task_attempts=1)) as pool:
        pool.tracebacks_expected = True
        path = accepted(pool, "deadly", rows_body(tag=[1], death=[1]))
        found = ended(pool, path)
        assert (found["state"], found["code"]) == ("failed", "worker_lost")
        assert result(pool, path).refused == (500, "worker_lost")
        letters = run(pool, "dlq", "show", "1").stdout
        assert "worker_lost" in letters
        with pytest.raises(AssertionError):
            tags(result(pool, path))
        assert ask(pool, path).object["state"] == "failed", "and it stays so"


@pytest.mark.long
def test_local_programs_and_requests_that_wait_do_not_notice_the_task_process(
    tmp_path: Path,
) -> None:
    """It takes no place among max_clients, and may stand still until the watchdog replaces it."""
    server = tasks_at(tmp_path, max_clients=1, stall_timeout_s=1.0)
    with serving("Probe", server=server) as pool, pool.client() as client:
        row = {"tag": [3], "seconds": [0.0]}
        assert client.infer("probe", row)["tag"].tolist() == [3]
        assert collected(pool, submitted(pool, 1)) == [1]
        (pid,) = pool.pids("tasks")
        os.kill(pid, signal.SIGSTOP)
        assert client.infer("probe", row)["tag"].tolist() == [3]
        assert tags(ask(pool, "/v2/models/probe/infer", rows_body(tag=[4], seconds=[0.0]))) == [4]
        path = submitted(pool, 5)
        assert pool.pids("tasks") != [pid], "the watchdog has replaced it"
        assert collected(pool, path) == [5]
