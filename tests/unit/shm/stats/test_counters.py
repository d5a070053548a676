"""The counters: no two blocks share a word, names, and sums over all who count."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchpool.core.layout.segments import MODELS_MOST
from batchpool.core.layout.stage_numbers import stage_number
from batchpool.core.metrics.segments import OF_MODELS, WORKER_SLOTS_MOST, counters_layout
from batchpool.core.metrics.table import BLOCKS, metric_of
from batchpool.core.tensors.stages import Stage
from batchpool.shm.stats.counters import BATCHER, NO_MODEL, SUPERVISOR, Counters, frontend_row
from tests.unit.counters import new_counters

FRONTENDS = 3


def places(counters: Counters) -> list[tuple[int, int, str]]:
    """(first word, word after the last, whose) of every block there is."""
    blocks = [("pool", 0, 0)]
    blocks += [("batcher", entry, 0) for entry in range(MODELS_MOST)]
    blocks += [("supervisor", entry, 0) for entry in range(MODELS_MOST)]
    blocks += [(f"kept.{w}", entry, 0) for w in OF_MODELS for entry in range(MODELS_MOST)]
    blocks += [("frontend", i, entry) for i in range(FRONTENDS) for entry in range(MODELS_MOST + 1)]
    blocks += [("worker", worker_slot, 0) for worker_slot in range(WORKER_SLOTS_MOST)]
    blocks += [("process", row, 0) for row in range(2 + FRONTENDS + WORKER_SLOTS_MOST)]
    found = []
    for writer, row, entry in blocks:
        at = counters.place(writer, row, entry)
        found.append(
            (at, at + BLOCKS[writer.removeprefix("kept.")].size, f"{writer} {row} {entry}")
        )
    return sorted(found)


def test_no_two_blocks_share_a_line_and_each_lies_in_its_column() -> None:
    counters = new_counters(FRONTENDS)
    columns = counters_layout(FRONTENDS).columns
    found = places(counters)
    for (_, end, one), (start, _, other) in pairwise(found):
        assert end <= start, f"{one} and {other}"
    for start, end, who in found:
        column = columns[who.split()[0]]
        assert column.offset <= 8 * start < 8 * end <= column.offset + column.nbytes, who
        assert 8 * start % 128 == 0, who


def test_the_process_rows_are_of_different_processes() -> None:
    counters = new_counters(FRONTENDS)
    rows = [SUPERVISOR, BATCHER, *map(frontend_row, range(FRONTENDS))]
    rows += [counters.worker_slot_row(worker_slot) for worker_slot in range(WORKER_SLOTS_MOST)]
    assert rows == list(range(2 + FRONTENDS + WORKER_SLOTS_MOST))


def count(
    counters: Counters, writer: str, name: str, *case: str, row: int = 0, entry: int = 0
) -> None:
    counters.cells[counters.place(writer, row, entry) + BLOCKS[writer].word(name, *case)] += 1


def run(counters: Counters, row: int, pid: int) -> None:
    """The process of this row is there and works."""
    at, block = counters.place("process", row), BLOCKS["process"]
    counters.cells[at + block.word("process_pid")] = pid
    counters.cells[at + block.word("process_up")] = int(pid > 0)


def test_the_front_ends_counts_are_added_up_and_requests_for_no_model_are_apart() -> None:
    counters = new_counters(FRONTENDS, "one", "two")
    ok, unknown = ("fast", "200", "ok"), ("asgi", "404", "not_found")
    for i in range(FRONTENDS):
        count(counters, "frontend", "http_requests_total", *ok, row=i, entry=1)
    count(counters, "frontend", "http_requests_total", *unknown, row=2, entry=NO_MODEL)
    totals = counters.totals()
    assert totals.values("http_requests_total", "model") == {"two": 3, "": 1}
    assert totals.values("http_requests_total", "code", model="two") == {"200": 3}
    assert totals.values("http_requests_total", "reason", model="") == {"not_found": 1}


def test_entries_of_one_name_are_one_model() -> None:
    counters = new_counters(1, "m", "m")
    for entry in (0, 1, 1):
        count(counters, "batcher", "rows_admitted_total", row=entry)
    assert counters.totals().value("rows_admitted_total", model="m") == 3
    assert counters.model_names() == ["m", "m"]


def test_stages_are_counted_apart_and_move_with_the_name() -> None:
    counters = new_counters(1, "m", "other")
    for stage, n in ((Stage.INFER, 1), (Stage.PREPROCESS, 2)):
        for _ in range(n):
            count(counters, "batcher", "rows_admitted_total", row=stage_number(0, stage))
    by_stage = {"infer": 1, "preprocess": 2}
    assert counters.totals().values("rows_admitted_total", "stage", model="m") == by_stage
    series = counters.totals().series(metric_of("rows_admitted_total"))
    assert {labels for labels, _ in series} == {
        ("m", "infer"), ("m", "preprocess"), ("other", "infer"),
    }, "a model without the stage has no series of it"  # fmt: skip
    counters.name_model(2, "m")
    counters.name_model(0, "")
    assert counters.totals().values("rows_admitted_total", "stage", model="m") == by_stage


def test_workers_are_named_by_their_stage() -> None:
    counters = new_counters(1, "m")
    counters.label_worker_slot(0, "m", 1, "cpu", Stage.PREPROCESS)
    assert counters.worker_slot_label(0) == ("m", "1", "cpu", "preprocess")
    assert counters.worker_slot_name(0) == "preprocess 1 of m"


def test_a_name_that_stays_keeps_its_counts_and_another_begins_at_nothing() -> None:
    counters = new_counters(2, "old")
    count(counters, "batcher", "rows_admitted_total")
    count(counters, "supervisor", "claims_refused_total", "http", "full")
    count(counters, "frontend", "http_requests_total", "fast", "200", "ok", row=1)
    counters.name_model(0, "old")
    assert counters.totals().value("http_requests_total", model="old") == 1
    counters.name_model(0, "new")
    totals = counters.totals()
    for name in ("rows_admitted_total", "claims_refused_total", "http_requests_total"):
        assert totals.values(name, "model") == {}, name
    assert counters.model_names() == ["new"]


def test_counts_that_are_on_their_way_are_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader finds them in both places, or in none."""
    counters = new_counters(1, "a")
    count(counters, "batcher", "rows_admitted_total")
    block, kept = counters.place("batcher", 0), counters.place("kept.batcher", 0)
    words = counters.cells[block : block + BLOCKS["batcher"].size].tolist()
    counters._turn[0] = 1
    for i, word in enumerate(words):
        counters.cells[kept + i] = word

    def arrive(seconds: float) -> None:
        for i in range(len(words)):
            counters.cells[block + i] = 0
        counters._turn[0] = 2

    monkeypatch.setattr("batchpool.shm.stats.counters.time.sleep", arrive)
    assert counters.totals().value("rows_admitted_total", model="a") == 1


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from("abc")), max_size=12))
def test_no_counter_goes_back_while_its_name_has_an_entry(turns: list[tuple[int, str]]) -> None:
    """Entries are given to other names again and again, and each time something is counted."""
    counters = new_counters(2)
    expected: dict[str, int] = {}
    for entry, name in turns:
        counters.name_model(entry, name)
        for writer, what, case in (
            ("batcher", "rows_admitted_total", ()),
            ("supervisor", "claims_refused_total", ("http", "full")),
            ("frontend", "http_requests_total", ("fast", "200", "ok")),
        ):
            rows = (0, 1) if writer == "frontend" else (entry,)
            for row in rows:
                count(counters, writer, what, *case, row=row, entry=entry)
        expected[name] = expected.get(name, 0) + 1
        expected = {name: n for name, n in expected.items() if name in counters.model_names()}
        totals = counters.totals()
        assert totals.values("rows_admitted_total", "model") == expected
        assert totals.values("claims_refused_total", "model") == expected
        assert totals.values("http_requests_total", "model") == {
            n: 2 * expected[n] for n in expected
        }


def test_gauges_of_an_entry_that_got_another_name_are_nobodys() -> None:
    counters = new_counters(1, "m", "m")
    run(counters, BATCHER, 77)
    for entry in (0, 1):
        counters.cells[counters.place("batcher", entry) + BLOCKS["batcher"].word("queue_rows")] = 9
    counters.name_model(0, "other")
    assert counters.totals().values("queue_rows", "model") == {"m": 9}


def test_the_time_of_the_last_inference_stays_with_the_name() -> None:
    counters = new_counters(1, "m", "m")
    word = BLOCKS["batcher"].word("last_inference_timestamp_seconds")
    for entry, ns in ((0, 50), (1, 20)):
        counters.cells[counters.place("batcher", entry) + word] = ns
    counters.name_model(0, "other")
    last = "last_inference_timestamp_seconds"
    assert counters.totals().words(last, model="m") == [50]
    counters.name_model(0, "m")
    counters.name_model(1, "other")
    assert counters.totals().words(last, model="m") == [50], "the largest, not the sum"


def test_names_are_read_back() -> None:
    counters = new_counters(1, "minilm")
    counters.label_worker_slot(0, "minilm", 0, "gpu GPU-4f2b")
    counters.label_worker_slot(1, "minilm", 1, "cpu")
    assert counters.worker_slot_label(0) == ("minilm", "0", "gpu GPU-4f2b", "infer")
    assert counters.worker_slot_names() == ["worker 0 of minilm", "worker 1 of minilm"]
    assert counters.worker_slot_label(2) == ("", "", "", "")


def test_gauges_are_told_while_their_process_works() -> None:
    counters = new_counters(1, "m")
    queued = counters.place("batcher") + BLOCKS["batcher"].word("queue_rows")
    counters.cells[queued] = 9
    assert counters.totals().value("queue_rows") == 0, "there is no batcher"
    run(counters, BATCHER, 77)
    assert counters.totals().value("queue_rows") == 9
    counters.alive[0] = 0
    assert counters.totals().value("queue_rows") == 0, "the model is not served any more"


def test_a_worker_slot_that_nobody_has_keeps_its_counts_and_is_no_process() -> None:
    counters = new_counters(1, "m")
    for worker_slot in (0, 1):
        counters.label_worker_slot(worker_slot, "m", worker_slot, "cpu")
        count(counters, "worker", "worker_rows_total", "ok", row=worker_slot)
        run(counters, counters.worker_slot_row(worker_slot), 100 + worker_slot)
        count(
            counters, "process", "process_restarts_total", row=counters.worker_slot_row(worker_slot)
        )
    counters.held[0] = 1
    totals = counters.totals()
    assert totals.values("worker_rows_total", "worker") == {"0": 1, "1": 1}
    assert totals.values("process_pid", "process") == {"worker 0 of m": 100}
    assert totals.values("process_up", "process") == {"worker 0 of m": 1}
    assert totals.values("process_restarts_total", "process") == {
        "worker 0 of m": 1, "worker 1 of m": 1,
    }  # fmt: skip


def test_counters_of_other_front_ends_are_refused() -> None:
    from batchpool.shm.segment import create

    fd = create(counters_layout(2), sealed=True)
    with pytest.raises(ValueError, match="another layout"):
        Counters(fd, 3)
