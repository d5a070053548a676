"""OpenAI's files and batches at a real pool, with the unmodified client; also killed in between."""

from __future__ import annotations

import io
import json
import os
import signal
import socket
import stat
from collections.abc import Iterator, Sequence
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

import pytest

from tests.lazy import library
from tests.process.pool_under_test import PATIENCE_S, Pool, serving, until
from tests.process.web import ask
from tests.unit.text.tokenizers_made import byte_level, saved

openai = library("openai")
library("tokenizers")

WORDS = "tests.process.text_models:Words"
LETTERS = "tests.process.letter_models:Letters"
EMBEDDINGS, COMPLETIONS, CHATS = "/v1/embeddings", "/v1/completions", "/v1/chat/completions"
ENDED = ("completed", "failed", "expired", "cancelled")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("state")


@pytest.fixture(scope="module")
def pool(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    keys = folder / "keys"
    keys.write_text("web:key-of-the-web\nother:key-of-another\n")
    keys.chmod(0o600)
    path = saved(byte_level(), tmp_path_factory.mktemp("tokenizer"))
    server = {
        "tasks": True, "batches": True, "state_dir": str(folder), "api_keys_file": str(keys),
        "client_slots": 64, "files_max_mib": 4, "file_max_mib": 1, "task_attempts": 1,
    }  # fmt: skip
    words = {"import": WORDS, "slots": 64, "max_batch": 8, "max_wait_ms": 0}
    letters = {"import": LETTERS, "options": {"tokenizer": str(path)}, "slots": 32, "max_batch": 8}
    letters["max_wait_ms"] = None  # which generators do not have
    with serving(words, letters, server=server) as running:
        yield running


def client(pool: Pool, key: str = "key-of-the-web") -> openai.OpenAI:
    url = f"http://127.0.0.1:{pool.port}/v1"
    return openai.OpenAI(base_url=url, api_key=key, max_retries=0, timeout=PATIENCE_S)


def line(custom_id: str, url: str = EMBEDDINGS, **body: Any) -> str:
    found = {"custom_id": custom_id, "method": "POST", "url": url, "body": body}
    return json.dumps(found)


def embedding_lines(texts: Sequence[str]) -> list[str]:
    return [line(f"n{i}", model="words", input=text) for i, text in enumerate(texts)]


def begun(caller: openai.OpenAI, lines: Sequence[str], endpoint: str = EMBEDDINGS) -> Any:
    content = io.BytesIO("\n".join(lines).encode())
    file = caller.files.create(file=("in.jsonl", content), purpose="batch")
    return caller.batches.create(
        input_file_id=file.id, endpoint=endpoint, completion_window="24h", metadata={"a": "b"}
    )


def ended(caller: openai.OpenAI, batch: Any) -> Any:
    def look() -> Any:
        try:
            found = caller.batches.retrieve(batch.id)
        except (openai.APIConnectionError, openai.InternalServerError):
            return None
        return found if found.status in ENDED else None

    return until(look, "the end of a batch")


def answers(caller: openai.OpenAI, file: str | None) -> list[Any]:
    if file is None:
        return []
    return [json.loads(each) for each in caller.files.content(file).text.splitlines()]


def test_a_file_of_embeddings_is_answered_in_its_order(pool: Pool, folder: Path) -> None:
    lines = embedding_lines(["one", "two words", "", "refuse", "raise"])
    lines += [
        "no JSON",
        "",
        lines[0],
        line("far", COMPLETIONS),
        line("gone", model="gone", input="a"),
    ]
    with client(pool) as caller:
        batch = begun(caller, lines)
        assert (batch.status, batch.endpoint, batch.metadata) == (
            "validating",
            EMBEDDINGS,
            {"a": "b"},
        )
        found = ended(caller, batch)
        assert found.status == "completed"
        counts = found.request_counts
        assert (counts.total, counts.completed, counts.failed) == (9, 3, 6)
        good = answers(caller, found.output_file_id)
        assert [each["custom_id"] for each in good] == ["n0", "n1", "n2"]
        direct = caller.embeddings.create(
            model="words", input="two words", encoding_format="float"
        ).model_dump()
        assert good[1]["error"] is None
        assert good[1]["response"]["status_code"] == 200
        assert good[1]["response"]["body"] == direct
        bad = answers(caller, found.error_file_id)
        shown = [
            (each["custom_id"], (each["error"] or each["response"]["body"]["error"])["code"])
            for each in bad
        ]
        assert shown == [
            ("n3", "invalid_request"), ("n4", "model_error"), (None, "invalid_json_line"),
            ("n0", "duplicate_custom_id"), ("far", "mismatched_url"), ("gone", "not_found"),
        ]  # fmt: skip
        assert [each["response"] and each["response"]["status_code"] for each in bad] == [
            400, 500, None, None, None, 404,
        ]  # fmt: skip
        assert bad[0]["response"]["body"]["error"]["param"] == "input"
        assert bad[2]["error"]["line"] == 6
        kept = next(folder.glob("batches*/files/" + found.output_file_id))
        assert stat.S_IMODE(kept.stat().st_mode) == 0o600
        pool.tracebacks_expected = True  # of the model that raises


def test_lists_owners_and_deletions(pool: Pool) -> None:
    with client(pool, "key-of-another") as caller:
        assert caller.files.list().data == []
        made = [begun(caller, [line(f"a{i}", model="words", input="a")]) for i in range(3)]
        ends = [ended(caller, each) for each in made]
        assert [each.id for each in caller.batches.list(limit=2)] == [
            each.id for each in reversed(made)
        ], "the client asks for the next page by itself"
        page = caller.batches.list(limit=2, after=made[2].id)
        assert ([each.id for each in page.data], page.has_more) == (
            [made[1].id, made[0].id], False,
        )  # fmt: skip
        inputs = caller.files.list(purpose="batch", order="asc").data
        assert [each.id for each in inputs] == [each.input_file_id for each in made]
        outputs = caller.files.list(purpose="batch_output").data
        assert {each.id for each in outputs} == {each.output_file_id for each in ends}
        gone = caller.files.delete(inputs[0].id)
        assert (gone.id, gone.deleted) == (inputs[0].id, True)
        with pytest.raises(openai.NotFoundError):
            caller.files.retrieve(inputs[0].id)
        with client(pool) as stranger:
            for call in (
                lambda: stranger.files.retrieve(inputs[1].id),
                lambda: stranger.files.content(outputs[0].id),
                lambda: stranger.files.delete(inputs[1].id),
                lambda: stranger.batches.retrieve(made[0].id),
                lambda: stranger.batches.cancel(made[0].id),
                lambda: stranger.batches.create(
                    input_file_id=inputs[1].id, endpoint=EMBEDDINGS, completion_window="24h"
                ),
            ):
                with pytest.raises(openai.NotFoundError):
                    call()
        assert caller.files.retrieve(inputs[1].id).filename == "in.jsonl"


def test_completions_and_chats(pool: Pool) -> None:
    chat = [{"role": "user", "content": "a"}]
    with client(pool) as caller:
        batch = begun(
            caller,
            [
                line("two", COMPLETIONS, model="letters", prompt=["a", "k"], max_tokens=3),
                line("stop", COMPLETIONS, model="letters", prompt="a", stop="de", max_tokens=9),
                line("stream", COMPLETIONS, model="letters", prompt="a", stream=True),
                line("words", COMPLETIONS, model="words", prompt="a"),
            ],
            COMPLETIONS,
        )
        chats = begun(caller, [line("c", CHATS, model="letters", messages=chat)], CHATS)
        found = ended(caller, batch)
        two, stop = (each["response"]["body"] for each in answers(caller, found.output_file_id))
        assert [each["text"] for each in two["choices"]] == ["bcd", "lmn"]
        assert two["usage"]["total_tokens"] == 8
        assert [(each["text"], each["finish_reason"]) for each in stop["choices"]] == [
            ("bc", "stop")
        ]
        bad = answers(caller, found.error_file_id)
        assert [each["response"]["body"]["error"]["param"] for each in bad] == ["stream", "model"]
        (only,) = answers(caller, ended(caller, chats).output_file_id)
        assert only["response"]["body"]["choices"][0]["message"]["content"].startswith("bcd")


def test_every_line_is_answered_once_whatever_is_killed(pool: Pool) -> None:
    texts = [f"{i}" for i in range(300)]
    texts[100] = texts[200] = "wait"  # for the note below
    with client(pool) as caller:
        batch = begun(caller, embedding_lines(texts))

        def is_under_way() -> bool:
            return bool(caller.batches.retrieve(batch.id).request_counts.completed > 50)

        until(is_under_way, "the first answers")
        kill_tasks(pool)
        (pool.notes / "go").touch()
        kill_tasks(pool)
        found = ended(caller, batch)
        assert (found.status, found.error_file_id) == ("completed", None)
        good = answers(caller, found.output_file_id)
        assert [each["custom_id"] for each in good] == [f"n{i}" for i in range(300)]
        sizes = [each["response"]["body"]["data"][0]["embedding"][0] for each in good]
        assert sizes == [len(text) for text in texts]
        (pool.notes / "go").unlink()


def kill_tasks(pool: Pool) -> None:
    (pid,) = until(lambda: pool.pids("tasks"), "the task process")
    os.kill(pid, signal.SIGKILL)
    until(lambda: pool.pids("tasks") not in ([], [pid]), "another one")


def test_cancelling_keeps_the_lines_that_are_done(pool: Pool) -> None:
    with client(pool) as caller:
        batch = begun(caller, embedding_lines(["a"] * 24 + ["wait"] * 40))

        def is_under_way() -> bool:
            return bool(caller.batches.retrieve(batch.id).request_counts.completed > 3)

        until(is_under_way, "answers before those that wait")
        with pytest.raises(openai.BadRequestError, match="which has not ended"):
            caller.files.delete(batch.input_file_id)
        assert caller.batches.cancel(batch.id).status in ("cancelling", "cancelled")
        found = ended(caller, batch)
        assert found.status == "cancelled"
        assert found.cancelled_at >= found.cancelling_at
        good = answers(caller, found.output_file_id)
        assert 3 < len(good) == found.request_counts.completed <= 24
        assert [each["custom_id"] for each in good] == [f"n{i}" for i in range(len(good))]
        (pool.notes / "go").touch()  # for the rows that still run


def test_refusals_are_the_clients_own_exceptions(pool: Pool) -> None:
    with client(pool) as caller:
        with pytest.raises(openai.BadRequestError) as purpose:
            caller.files.create(file=io.BytesIO(b"{}"), purpose="fine-tune")
        assert purpose.value.param == "purpose"
        file = caller.files.create(file=("../../etc/x", b"{}"), purpose="batch")
        assert file.filename == "x"
        failed = ended(
            caller,
            caller.batches.create(
                input_file_id=file.id, endpoint=EMBEDDINGS, completion_window="24h"
            ),
        )
        assert (failed.status, failed.errors.data[0].code) == ("failed", "invalid_custom_id")
        for wrong, param in (
            ({"completion_window": "1h"}, "completion_window"),
            ({"endpoint": "/v1/responses"}, "endpoint"),
        ):
            right = {"endpoint": EMBEDDINGS, "completion_window": "24h"}
            with pytest.raises(openai.BadRequestError) as refused:
                caller.batches.create(input_file_id=file.id, **(right | wrong))
            assert refused.value.param == param
        with pytest.raises(openai.APIStatusError) as large:
            caller.files.create(file=io.BytesIO(b"x" * (1 << 20) + b"x"), purpose="batch")
        assert (large.value.status_code, large.value.code) == (413, "too_large")
        caller.files.create(file=io.BytesIO(b"x" * (1 << 20)), purpose="batch")
        with pytest.raises(openai.InternalServerError) as full:
            caller.files.create(file=io.BytesIO(b"x" * (1 << 20)), purpose="batch")
        assert (full.value.status_code, full.value.code) == (507, "storage_full")
        assert "half of what is kept for all" in full.value.message
    with client(pool, "key-of-another") as other:
        other.files.create(file=io.BytesIO(b"x" * (1 << 20)), purpose="batch")


def test_an_upload_that_breaks_off_leaves_nothing(pool: Pool, folder: Path) -> None:
    kept = next(folder.glob("batches*/files"))
    before = set(os.listdir(kept))
    head = (
        b"POST /v1/files HTTP/1.1\r\nHost: pool\r\nAuthorization: Bearer key-of-another\r\n"
        b"Content-Type: multipart/form-data; boundary=b\r\nContent-Length: 900000\r\n\r\n"
        b'--b\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\n'
    )
    with socket.create_connection(("127.0.0.1", pool.port), PATIENCE_S) as connection:
        connection.sendall(head + b"x" * 600_000)
        until(lambda: set(os.listdir(kept)) != before, "bytes of the upload")
    until(lambda: set(os.listdir(kept)) == before, "the end of the upload")
    form = {
        "Authorization": "Bearer key-of-another",
        "Content-Type": "multipart/form-data; boundary=b",
    }
    cut = ask(pool, "/v1/files", b"--b\r\n\r\nx", form, method="POST")
    assert (cut.status, cut.object["error"]["code"]) == (400, "invalid_request")
    assert set(os.listdir(kept)) == before


def test_an_upload_whose_process_dies_is_to_be_sent_again(pool: Pool, folder: Path) -> None:
    kept = next(folder.glob("batches*/files"))
    before = set(os.listdir(kept))
    body = (
        b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        b'--b\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\n'
    ) + b"x" * 600_000
    end = b"\r\n--b--\r\n"
    head = (
        b"POST /v1/files HTTP/1.1\r\nHost: pool\r\nAuthorization: Bearer key-of-another\r\n"
        b"Content-Type: multipart/form-data; boundary=b\r\nContent-Length: %d\r\n\r\n"
    ) % (len(body) + len(end))
    with socket.create_connection(("127.0.0.1", pool.port), PATIENCE_S) as connection:
        connection.sendall(head + body)
        until(lambda: set(os.listdir(kept)) != before, "bytes of the upload")
        kill_tasks(pool)
        connection.sendall(end)
        answer = HTTPResponse(connection)
        answer.begin()
        assert answer.status == 503
        assert b"send the file again" in answer.read()
    # The next task process removes it as it begins, whenever that is.
    until(lambda: set(os.listdir(kept)) == before, "the end of the upload")


@pytest.mark.long
def test_a_batch_goes_on_in_another_pool(tmp_path: Path) -> None:
    server = {
        "tasks": True, "batches": True, "state_dir": str(tmp_path), "client_slots": 64,
    }  # fmt: skip
    words = {"import": WORDS, "slots": 64, "max_batch": 8, "max_wait_ms": 0}
    texts = [f"{i}" for i in range(400)]
    texts[100] = "wait"  # for the note below
    with serving(words, server=server) as pool, client(pool) as caller:
        port = pool.port
        batch = begun(caller, embedding_lines(texts))

        def is_under_way() -> bool:
            return bool(caller.batches.retrieve(batch.id).request_counts.completed > 50)

        until(is_under_way, "the first answers")
        pool.end_at_once()
    with serving(words, server=server, port=port) as pool, client(pool) as caller:
        until(lambda: caller.batches.retrieve(batch.id).status == "in_progress", "its run")
        assert pool.stop() == 0, "an open batch does not hold up the end"
    with serving(words, server=server, port=port) as pool, client(pool) as caller:
        (pool.notes / "go").touch()
        found = ended(caller, batch)
        good = answers(caller, found.output_file_id)
        assert [each["custom_id"] for each in good] == [f"n{i}" for i in range(400)]
