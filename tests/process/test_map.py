"""Client.map against a real pool: order, windows, bad rows, abandoned iterators, restarts."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import numpy as np
import pytest

import batchpool as bp
from tests.process.gates import opened_at_last
from tests.process.models import FAULTS
from tests.process.pool_under_test import PATIENCE_S, Pool, serving, until

X = np.arange(40_000, dtype=np.float32).reshape(10_000, 4)


class Counted:
    """An iterator that counts what is read of it."""

    def __init__(self, rows: Any) -> None:
        self.read = 0
        self._rows = iter(rows)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        row = next(self._rows)
        self.read += 1
        return row


def assert_all_come_back(pool: Pool, client: bp.Client) -> None:
    """Slots that nobody waits for come back as the client is used, which works on."""

    def are_back() -> bool:
        assert client.infer("affine", x=X[:1])["y"][0, 0] == 1
        return pool.claimed() == 0

    until(are_back, "the return of all slots")


FORMS: list[Callable[[bp.Client], Iterator[Any]]] = [
    lambda client: client.map("affine", X),
    lambda client: client.map("affine", ({"x": row} for row in X)),
    lambda client: client.map("affine", iter(X.tolist())),
    lambda client: client.map("affine", {"x": X}),
    lambda client: client.map("affine", x=X),
    lambda client: client.map("affine", x=iter(X)),
]


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_rows_gives_every_result_once_and_in_order(
    client: bp.Client, form: Callable[[bp.Client], Iterator[Any]]
) -> None:
    found = list(form(client))
    assert np.array_equal(np.stack([result["y"] for result in found]), X * 2 + 1)


def test_no_rows_are_no_results(client: bp.Client) -> None:
    assert list(client.map("affine", [])) == []
    assert list(client.map("affine", x=X[:0])) == []


def test_unordered_results_come_with_the_numbers_of_their_rows(client: bp.Client) -> None:
    found = dict(client.map("affine", X, ordered=False))
    assert sorted(found) == list(range(len(X)))
    assert all(np.array_equal(found[i]["y"], X[i] * 2 + 1) for i in (0, 5_000, 9_999))


@pytest.mark.parametrize("window", [1, 7, 300])
def test_a_slow_consumer_holds_no_more_than_the_window(
    everyday: Pool, client: bp.Client, window: int
) -> None:
    rows = Counted(X[:2_000])
    for i, result in enumerate(client.map("affine", rows, window=window)):
        assert result["y"][0] == X[i, 0] * 2 + 1
        assert rows.read - i <= window
        assert i % 500 or everyday.claimed() <= window
    assert rows.read == 2_000


def test_one_bad_row_is_yielded_in_its_place_and_the_rest_goes_on(client: bp.Client) -> None:
    fault = np.zeros(1_000, np.int64)
    fault[613] = FAULTS["raises"]
    x = np.arange(1_000, dtype=np.float32)
    found = list(client.map("faulty", x=x, fault=fault, errors="return"))
    bad = [i for i, result in enumerate(found) if isinstance(result, bp.PoolError)]
    assert bad == [613]
    assert found[613].row == 613
    assert isinstance(found[613], bp.ModelError)
    assert [float(r["y"]) for i, r in enumerate(found) if i != 613] == [
        2.0 * i for i in range(1_000) if i != 613
    ]


def test_a_bad_row_is_raised_after_those_before_it(everyday: Pool, client: bp.Client) -> None:
    fault = np.zeros(1_000, np.int64)
    fault[613] = FAULTS["raises"]
    results = client.map("faulty", x=np.zeros(1_000, np.float32), fault=fault)
    got = 0
    with pytest.raises(bp.ModelError, match="this row is bad") as caught:
        for _ in results:
            got += 1
    assert (got, caught.value.row) == (613, 613)
    assert_all_come_back(everyday, client)


def test_rows_that_do_not_fit_are_refused_by_their_numbers(client: bp.Client) -> None:
    rows: list[Any] = [b"a"] * 500
    rows[0] = rows[499] = b"x" * 5_000
    rows[77] = 7
    found = list(client.map("echo", rows, errors="return"))
    bad = {i: result for i, result in enumerate(found) if isinstance(result, bp.PoolError)}
    assert {i: type(error) for i, error in bad.items()} == {
        0: bp.TooLarge,
        77: bp.InvalidRequest,
        499: bp.TooLarge,
    }
    assert "row 499: input 'text'" in str(bad[499])
    every = list(client.map("echo", [7, 8, 9], errors="return"))
    assert [(type(error), error.row) for error in every] == [
        (bp.InvalidRequest, i) for i in range(3)
    ]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"z": X}, "no input 'z'; it has 'x'"),
        ({"x": X, "parameters": {"k": 1}}, "no parameter 'k'"),
        ({"x": X, "window": 0}, "window is 0; a number of rows, at least 1"),
        ({"x": X, "errors": "yield"}, "errors is 'yield'; 'raise' or 'return'"),
        ({"x": X, "outputs": []}, "outputs is empty"),
        ({"x": X, "outputs": ["z"]}, "no output 'z'"),
        ({"x": "text"}, "input 'x' is a str; an array or an iterable"),
        ({}, "no rows came"),
    ],
)
def test_wrong_arguments_are_raised(
    client: bp.Client, arguments: dict[str, Any], text: str
) -> None:
    with pytest.raises(bp.InvalidRequest, match=text):
        next(client.map("affine", errors=arguments.pop("errors", "return"), **arguments))


def test_columns_of_different_lengths_are_told(client: bp.Client) -> None:
    with pytest.raises(bp.InvalidRequest, match="'fault' ended after 3 rows, but input 'x'"):
        list(client.map("faulty", x=np.zeros(9, np.float32), fault=iter([0, 0, 0])))


def gated(client: bp.Client, n: int, gate: int) -> Iterator[Any]:
    """The results of n rows, of which those behind the first window of 224 wait at a gate."""
    gates = np.where(np.arange(n) < 224, 0, gate)
    return client.map("probe", tag=np.arange(n), seconds=np.zeros(n, np.float32), gate=gates)


def test_an_abandoned_iterator_frees_what_is_under_way(everyday: Pool, client: bp.Client) -> None:
    with opened_at_last(everyday, 301):
        results = gated(client, 400, 301)
        assert next(results)["tag"] == 0
        assert everyday.claimed() > 0
        del results
    assert_all_come_back(everyday, client)


def test_an_iterator_of_a_closed_client_ends(everyday: Pool) -> None:
    client = everyday.client()
    results = client.map("affine", X)
    next(results)
    client.close()
    with pytest.raises(bp.PoolStopped):
        list(results)


def test_results_that_came_while_the_caller_was_busy_are_not_late(client: bp.Client) -> None:
    def come_all() -> bool:
        results = client.map("probe", tag=range(8), seconds=[0.0] * 8, window=4, timeout_s=0.5)
        try:
            first = next(results)
            threading.Event().wait(0.6)  # past the deadline of the rows that are under way
            found = [int(r["tag"]) for r in (first, *results)]
        except bp.DeadlineExceeded:  # each time, or now and then on a machine that stands still
            return False
        assert found == list(range(8))
        return True

    until(come_all, "the results of all rows", 60)


def test_ctrl_c_leaves_the_client_usable(everyday: Pool, client: bp.Client) -> None:
    results = gated(client, 1_000, 302)
    next(results)
    me = threading.get_ident()
    timer = threading.Timer(0.05, lambda: signal.pthread_kill(me, signal.SIGINT))
    # Python heeds no signal that was ignored when it began, as that of a shell's background job.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with opened_at_last(everyday, 302), pytest.raises(KeyboardInterrupt):
            timer.start()
            for _ in results:
                pass
        timer.join()
    finally:
        signal.signal(signal.SIGINT, before)
    assert_all_come_back(everyday, client)


def test_an_async_client_maps_both_kinds_of_iterables(everyday: Pool) -> None:
    async def rows() -> AsyncIterator[Any]:
        for row in X[:3_000]:
            yield row

    async def work() -> None:
        async with everyday.async_client() as client:
            for source in (rows(), X[:3_000]):
                found = [result["y"] async for result in client.map("affine", source)]
                assert np.array_equal(np.stack(found), X[:3_000] * 2 + 1)
            pairs = client.map("affine", rows(), ordered=False)
            assert sorted([i async for i, _ in pairs]) == list(range(3_000))
            left = client.map("affine", X)
            assert (await anext(left))["y"][0] == 1
            await left.aclose()
            while everyday.claimed():
                await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(work(), PATIENCE_S))


@pytest.mark.long
def test_rows_are_sent_again_to_a_pool_that_comes_back_and_not_for_ever() -> None:
    """The pool stops with rows under way, and another one takes its place; then none does."""
    table = {"import": "Affine", "max_batch": 8, "slots": 64}
    with serving(table) as pool:
        client = pool.client()
        results = client.map("affine", Counted(X[:2_000]), outage_s=90)
        found = [next(results)["y"] for _ in range(500)]
        pool.stop()
        rest: list[Any] = []
        thread = threading.Thread(target=lambda: rest.extend(r["y"] for r in results))
        thread.start()
        with pool.again(table):
            thread.join(90)
            assert np.array_equal(np.stack([*found, *rest]), X[:2_000] * 2 + 1)
            results = client.map("affine", X, outage_s=0.1)
            next(results)
        with pytest.raises(bp.PoolStopped):
            list(results)
        client.close()
