"""The verdicts on tasks that ended with an error."""

from __future__ import annotations

import pytest

from batchpool.core.errors import (
    DeadlineExceeded,
    Draining,
    InternalError,
    InvalidInput,
    InvalidRequest,
    ModelError,
    NotFound,
    NotReady,
    Overloaded,
    PoolError,
    PoolStopped,
    TooLarge,
    WorkerLost,
)
from batchpool.tasks.judgement import OtherInputs, judge


@pytest.mark.parametrize("kind", [Overloaded, NotReady, Draining, PoolStopped])
def test_the_pools_weather_costs_no_attempt_however_long_it_lasts(kind: type[PoolError]) -> None:
    verdict = judge(kind("later"), 99, 1, 0.0)
    assert (verdict.after_s, verdict.counted, verdict.is_weather) == (1.0, False, True)
    slow = Overloaded("later", 60_000)
    assert judge(slow, 0, 3, 0.0).after_s == 10.0
    assert judge(Overloaded("later", 1), 0, 3, 0.0).after_s == 0.2


@pytest.mark.parametrize("kind", [InvalidRequest, InvalidInput, TooLarge, NotFound])
def test_what_no_second_attempt_can_change_fails_at_once(kind: type[PoolError]) -> None:
    verdict = judge(kind("no"), 0, 9, 0.0)
    assert (verdict.after_s, verdict.counted) == (None, True)


@pytest.mark.parametrize("kind", [ModelError, InternalError, DeadlineExceeded])
def test_attempts_come_later_and_later_until_there_are_no_more(kind: type[PoolError]) -> None:
    found = [judge(kind("no"), attempts, 4, 0.0).after_s for attempts in range(4)]
    assert found == [1.0, 4.0, 16.0, None]
    assert judge(kind("no"), 0, 4, 1.0).after_s == pytest.approx(1.2)
    assert judge(kind("no"), 0, 4, -1.0).after_s == pytest.approx(0.8)
    assert judge(kind("no"), 50, 99, 0.0).after_s == 300.0


def test_a_task_may_lose_its_worker_twice() -> None:
    assert judge(WorkerLost("dead"), 0, 9, 0.0).after_s == 1.0
    assert judge(WorkerLost("dead"), 1, 9, 0.0).after_s is None


@pytest.mark.parametrize("kind", [NotFound, OtherInputs])
def test_what_another_pool_may_be_able_to_run_is_left_to_it_for_the_time_of_a_release(
    kind: type[PoolError],
) -> None:
    found = [judge(kind("no"), 0, 3, 0.0, age_s) for age_s in (0.0, 40.0, 599.0, 600.0)]
    assert [verdict.after_s for verdict in found] == [1.0, 10.0, 60.0, None]
    assert [verdict.counted for verdict in found] == [False, False, False, True]
    assert judge(InvalidRequest("no"), 0, 3, 0.0, 0.0).after_s is None, "it is so in every pool"
