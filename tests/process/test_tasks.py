"""Tasks over HTTP in one pool that does no harm to anything: their forms, states and ends."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.process.pool_under_test import Pool, serving, until
from tests.process.task_calls import (
    ASYNC,
    OWN_HEADERS,
    accepted,
    ended,
    probe_body,
    result,
    rows_body,
    state,
    submit,
    tags,
)
from tests.process.test_tasks_survive import run
from tests.process.web import HEADER_LENGTH, ask

MODELS = ("Gated", "Scaled", "Ragged", "Echo", "Faulty")


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """A pool that keeps tasks."""
    folder = tmp_path_factory.mktemp("state")
    server = {"tasks": True, "state_dir": str(folder), "access_log": "all"}
    with serving(*MODELS, server=server) as pool:
        pool.tracebacks_expected = True  # of models that raise
        yield pool


def open_gate(pool: Pool, gate: int) -> None:
    (pool.notes / f"gate-{gate}").touch()


SCALED = rows_body(x=[[1.0, 2.0], [3.0, 4.0]])[:-1] + b', "parameters": {"shift": 3}}'
FORMS = {
    "json": ("scaled", SCALED, {}),
    "id and one output": (
        "scaled",
        SCALED[:-1] + b', "id": "a b", "outputs": [{"name": "twice"}]}',
        {},
    ),
    "binary outputs": (
        "scaled",
        SCALED[:-1] + b', "outputs": [{"name": "y", "parameters": {"binary_data": true}}]}',
        {},
    ),
    "plain": ("scaled", b'{"instances": [[1, 2], [3, 4]], "parameters": {"shift": 1}}', {}),
    "raw ragged": ("ragged", bytes(24), {HEADER_LENGTH: "0"}),
    "ragged rows": ("ragged", b'{"instances": [[1, 2], [3]]}', {}),
    "sizes asked for": (
        "ragged",
        rows_body(ids=[[1, 2]])[:-1] + b', "outputs": [{"name": "next"}, {"name": "next.sizes"}]}',
        {},
    ),
    "text": ("echo", b"hello", {"Content-Type": "text/plain"}),
    "compressed": ("scaled", gzip.compress(SCALED), {"Content-Encoding": "gzip"}),
    "not utf-8 as json": (
        "echo",
        b"\xff\xfe",
        {"Content-Type": "application/octet-stream", "Accept": "application/json"},
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_result_is_the_answer_that_the_request_would_have_had(pool: Pool, form: str) -> None:
    model, body, headers = FORMS[form]
    at_once = ask(pool, f"/v2/models/{model}/infer", body, headers)
    later = result(pool, accepted(pool, model, body, headers))
    assert later.status == at_once.status
    assert later.body == at_once.body
    assert {k: v for k, v in later.headers.items() if k not in OWN_HEADERS} == {
        k: v for k, v in at_once.headers.items() if k not in OWN_HEADERS
    }


def test_a_row_that_fails_gives_the_error_that_it_would_have_had(pool: Pool) -> None:
    """Complaint 3: a task whose model raises ends, and does not stay open until it is forgotten."""
    body = rows_body(x=[1.0, 2.0], fault=[0, 1]).replace(b"FP64", b"FP32")
    at_once = ask(pool, "/v2/models/faulty/infer", body)
    path = accepted(pool, "faulty", body, {"X-Request-Timeout-Ms": "60000"})
    found = state(pool, path, 60)
    while found["state"] not in ("failed", "done"):
        found = state(pool, path, 60)
    later = result(pool, path)
    assert (found["state"], found["code"]) == ("failed", at_once.object["code"])
    assert (later.status, later.object["code"]) == at_once.refused
    assert later.object["row"] == at_once.object["row"]
    shown = run(pool, "dlq", "show", "--all", "--model", "faulty")
    assert shown.returncode == 0, shown.stderr
    assert ", in infer\n" in shown.stdout, "the model's own traceback"
    assert "  ValueError: this row is bad\n" in shown.stdout


def test_a_task_is_told_and_waited_for_and_taken_back(pool: Pool) -> None:
    answer = submit(pool, "gated", probe_body(7, gate=1))
    path = answer.headers["location"]
    assert answer.status == 202
    assert answer.headers["preference-applied"] == "respond-async"
    assert answer.object["id"] == path.rpartition("/")[2]
    assert (answer.object["state"], answer.object["model_name"]) == ("queued", "gated")
    assert state(pool, path)["state"] in ("queued", "running")
    early = ask(pool, f"{path}/result")
    assert (early.status, early.headers["retry-after"]) == (202, "1")
    open_gate(pool, 1)
    assert ended(pool, path)["state"] == "done"
    assert tags(result(pool, path)) == [7]
    assert tags(result(pool, path)) == [7], "a second reader gets it too"
    gone = ask(pool, path, method="DELETE")
    assert (gone.status, gone.body) == (204, b"")
    assert ask(pool, path, method="DELETE").refused == (404, "not_found")
    assert ask(pool, path).refused == (404, "not_found")


def test_an_open_task_is_cancelled_once(pool: Pool) -> None:
    path = accepted(pool, "gated", probe_body(8, gate=2))
    assert ask(pool, path, method="DELETE").status == 204
    assert state(pool, path)["state"] == "cancelled"
    assert ask(pool, f"{path}/result").refused == (409, "task_cancelled")
    assert ask(pool, path, method="DELETE").refused == (404, "not_found")
    open_gate(pool, 2)


def test_a_caller_that_waits_gets_the_answer_itself_if_it_comes_in_time(pool: Pool) -> None:
    waits = {"Prefer": 'respond-async, wait="20"'}
    assert tags(submit(pool, "gated", probe_body(9), waits)) == [9]
    late = submit(pool, "gated", probe_body(9, gate=3), {"Prefer": "respond-async; x=y, wait=0"})
    assert late.status == 202
    open_gate(pool, 3)
    assert tags(result(pool, late.headers["location"])) == [9]


def test_a_key_makes_one_task_of_requests_that_come_together(pool: Pool) -> None:
    """Complaint 2: a request that is sent again, as its sender saw no answer, runs once."""
    keyed = {"Idempotency-Key": "once"}
    with ThreadPoolExecutor(8) as threads:
        answers = list(
            threads.map(lambda _: submit(pool, "gated", probe_body(5, gate=4), keyed), range(16))
        )
    assert {answer.status for answer in answers} == {202}
    assert len({answer.headers["location"] for answer in answers}) == 1
    assert sum("idempotency-replayed" not in answer.headers for answer in answers) == 1
    open_gate(pool, 4)
    path = answers[0].headers["location"]
    assert tags(result(pool, path)) == [5]
    again = submit(pool, "gated", probe_body(5, gate=4), keyed)
    assert again.headers["location"] == path
    assert again.object["state"] == "done"
    other = submit(pool, "gated", probe_body(6, gate=4), keyed)
    assert other.refused == (422, "idempotency_mismatch")
    another = submit(pool, "gated", probe_body(6), {**keyed, "X-Client-Id": "another"})
    assert another.status == 202, "a key is its caller's own"


@pytest.mark.parametrize("key", ["a b", "x" * 256, "\x7f", ""])
def test_a_key_that_is_none_is_refused(pool: Pool, key: str) -> None:
    found = submit(pool, "gated", probe_body(1), {"Idempotency-Key": key})
    assert found.refused == (400, "invalid_request")


def test_what_could_never_run_is_no_task(pool: Pool) -> None:
    assert submit(pool, "gated", b'{"inputs": []}').refused == (400, "invalid_request")
    assert submit(pool, "nothing", probe_body(1)).refused == (404, "not_found")
    odd = submit(pool, "gated", probe_body(1), {"Content-Type": "text/html"})
    assert odd.refused == (415, "unsupported_media")


def test_ids_that_are_none_and_times_that_are_none(pool: Pool) -> None:
    """C70: an id that nobody has is not pending for ever."""
    for unknown in ("x", "t_" + "0" * 38, "t_" + "v" * 39, "%00", "t_" + "Z" * 39):
        assert ask(pool, f"/v2/tasks/{unknown}").status == 404
        assert ask(pool, f"/v2/tasks/{unknown}/result").status == 404
    old = "t_" + "0" * 8 + "1" + "0" * 30  # of January 1970
    assert ask(pool, f"/v2/tasks/{old}").refused == (410, "expired")
    assert ask(pool, f"/v2/tasks/{old}/result").refused == (410, "expired")
    for wait in ("-1", "61", "x", "nan"):
        assert ask(pool, f"/v2/tasks/{old}?wait_s={wait}").refused == (400, "invalid_request")


def test_the_states_of_many_come_in_one_answer(pool: Pool) -> None:
    paths = [accepted(pool, "gated", probe_body(i)) for i in range(3)]
    ids = [path.rpartition("/")[2] for path in paths]
    for path in paths:
        ended(pool, path)
    body = json.dumps({"ids": [*ids, "t_nobody"]}).encode()
    found = ask(pool, "/v2/tasks/query", body).object["tasks"]
    assert [(task["id"], task["state"]) for task in found] == [
        *((identifier, "done") for identifier in ids),
        ("t_nobody", "not_found"),
    ]
    many = json.dumps({"ids": ["x"] * 1001}).encode()
    for wrong in (b"", b"[]", b'{"ids": []}', b'{"ids": ["\xff"]}', many):
        answer = ask(pool, "/v2/tasks/query", wrong, method="POST")
        assert answer.refused == (400, "invalid_request")


def test_many_tasks_share_batches_and_each_gets_its_own_row(pool: Pool) -> None:
    """Complaint 13: a result belongs to its task, whatever ran with it."""
    before = pool.tally("gated")["batches"]
    with ThreadPoolExecutor(8) as threads:
        paths = list(
            threads.map(
                lambda tag: accepted(pool, "gated", probe_body(tag, gate=5)), range(100, 140)
            )
        )
        open_gate(pool, 5)
        found = list(threads.map(lambda path: tags(result(pool, path)), paths))
    assert found == [[tag] for tag in range(100, 140)]
    assert pool.tally("gated")["batches"] - before < 40


def test_metrics_and_the_list_of_processes_tell_of_tasks(pool: Pool) -> None:
    ended(pool, accepted(pool, "gated", probe_body(1)))
    text = ask(pool, "/metrics").body.decode()
    assert "batchpool_tasks_submitted_total" in text
    assert 'batchpool_task_seconds_bucket{le="+Inf",model="gated"}' in text
    assert 'batchpool_process_up{process="tasks"} 1.0' in text
    assert len(pool.pids("tasks")) == 1


def test_the_access_log_and_the_log_do_not_show_whole_ids(pool: Pool) -> None:
    path = accepted(pool, "gated", probe_body(1))
    ended(pool, path)
    ask(pool, f"{path}/result")
    until(lambda: f"{path[:20]}.../result" in pool.log, "a line of the access log")
    assert path.rpartition("/")[2] not in pool.log


def test_the_files_are_for_the_pools_user_alone(pool: Pool) -> None:
    ended(pool, accepted(pool, "gated", probe_body(1)))
    (folder,) = Path(pool.folder, "pool.toml").read_text().split('state_dir = "')[1:]
    tasks = next(Path(folder.partition('"')[0]).iterdir())
    assert tasks.stat().st_mode & 0o777 == 0o700
    assert {entry.stat().st_mode & 0o077 for entry in tasks.iterdir()} == {0}


def test_a_preference_is_ignored_where_no_tasks_are_kept(everyday: Pool) -> None:
    body = rows_body(tag=[4], seconds=[0.0])
    assert tags(ask(everyday, "/v2/models/probe/infer", body, ASYNC)) == [4]
    assert ask(everyday, "/v2/tasks/t_x").refused == (501, "not_supported")
