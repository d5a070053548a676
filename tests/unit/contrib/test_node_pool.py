"""The pool of a replica: which one it is, and when it counts as ready."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from batchpool.contrib import node_pool as module
from batchpool.contrib.node_pool import check_ready, node_pool
from batchpool.core.errors import ConfigError, NotReady, PoolStopped, StartError


def test_a_pool_of_its_own_sees_the_gpus_that_were_given_and_no_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[tuple[list[str], Mapping[str, str]]] = []

    @contextmanager
    def own_pool(words: Sequence[str], more: Mapping[str, str]) -> Iterator[str]:
        started.append((list(words), more))
        yield "/own"

    monkeypatch.setattr(module, "own_pool", own_pool)
    for gpus in (["2", "GPU-5f"], []):
        with node_pool(None, ["--model", "a:B"], gpus, 0.0) as path:
            assert path == "/own"
    assert [words for words, _ in started] == [["--model", "a:B"]] * 2
    assert [more["CUDA_VISIBLE_DEVICES"] for _, more in started] == ["2,GPU-5f", ""]


def test_a_running_pool_is_waited_for_until_it_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[Any] = [PoolStopped("nobody listens"), {"state": "starting"}, {"state": "ready"}]
    pauses: list[float] = []

    def ask_status(path: str) -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(module, "ask_status", ask_status)
    monkeypatch.setattr("time.sleep", pauses.append)
    with node_pool("/there", [], ["0"], 1e6) as path:
        assert path == "/there"
    assert answers == []
    assert len(pauses) == 2


def test_no_pool_in_time_is_told_with_its_reason() -> None:
    with (
        pytest.raises(StartError, match=r"within 0 s: .*/nowhere/pool.*batchpool serve"),
        node_pool("/nowhere/pool", [], [], 0.0),
    ):
        pass


def test_a_pool_that_drains_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ask_status", lambda path: {"state": "draining"})
    with pytest.raises(NotReady, match="the pool at /there is draining"):
        check_ready("/there")


@pytest.mark.parametrize("models", [{}, {"m": {"ready": False}}])
def test_a_pool_that_does_not_serve_the_model_is_not_ready_for_it(
    monkeypatch: pytest.MonkeyPatch, models: dict[str, Any]
) -> None:
    status = {"state": "ready", "models": {"other": {"ready": True}, **models}}
    monkeypatch.setattr(module, "ask_status", lambda path: status)
    check_ready("/there")
    check_ready("/there", "other")
    with pytest.raises(NotReady, match="the pool at /there does not serve model 'm'"):
        check_ready("/there", "m")


def test_a_running_pool_and_one_of_its_own_are_not_asked_for_together() -> None:
    with (
        pytest.raises(ConfigError, match="one of them was expected"),
        node_pool("/a", ["b"], [], 0),
    ):
        pass
