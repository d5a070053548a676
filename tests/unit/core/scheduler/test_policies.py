"""When a batch leaves: the fixed and the adaptive policy, to the nanosecond."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from batchpool.core.config.schema import ModelConfig
from batchpool.core.layout.segments import RECORDS
from batchpool.core.scheduler.decide import NEVER_NS, Limits, WorkerView
from batchpool.core.scheduler.depth import AHEAD
from batchpool.core.scheduler.estimators import _GAPS, ArrivalEstimator, ServiceTime
from batchpool.core.tensors.stages import Stage
from tests.unit.core.scheduler.decisions import (
    FAR,
    LANES,
    NOW,
    Case,
    Outcome,
    mask,
    time_of,
    traffic_of,
    waiting,
    worth_until_ns,
)
from tests.unit.core.scheduler.queued import MS

FOUR = Limits(max_batch=4, max_wait_ns=5000 * MS)
ADAPTIVE = Limits(max_batch=4, max_wait_ns=10 * MS, adaptive=True, max_wait_peak_ns=100 * MS)
IDLE = [WorkerView(0, 0)]
BUSY = [WorkerView(0, 1)]
SLOW = time_of(40 * MS, 1 * MS, spread=1.5)
DENSE = traffic_of(MS // 10)


def outcome(
    submit: Sequence[int],
    workers: list[WorkerView],
    limits: Limits = FOUR,
    now: int = NOW,
    traffic: ArrivalEstimator | None = None,
    **words: Sequence[int] | int,
) -> Outcome:
    return Outcome(Case(waiting(submit, **words), workers, limits, traffic, now))


def sent(o: Outcome) -> list[tuple[int, str, list[int]]]:
    return [(d.worker, d.reason.name, rows) for d, rows in o.batches]


def test_limits_of_a_configuration() -> None:
    config = ModelConfig(
        import_name="m:M",
        max_wait_ms=2.5,
        max_wait_peak_ms=30,
        target_p99_ms=80,
        batch_sizes=(8, 32),
        policy="adaptive",
    )
    assert Limits.of(config) == Limits(
        max_batch=32,
        max_wait_ns=2_500_000,
        depth=2,
        draining=False,
        adaptive=True,
        max_wait_peak_ns=30 * MS,
        target_ns=80 * MS,
        sizes=(8, 32),
        bucketed=False,
        background_slowdown=0.25,
    )
    fixed = Limits.of(ModelConfig(import_name="m:M", policy="fixed", max_batch=7))
    assert (fixed.adaptive, fixed.max_batch, fixed.sizes, fixed.target_ns) == (False, 7, (), 0)


def test_a_batch_is_padded_to_the_next_size() -> None:
    limits = replace(FOUR, max_batch=16, sizes=(2, 8, 16))
    assert [limits.padded(n) for n in (1, 2, 3, 8, 9, 16)] == [2, 2, 8, 8, 16, 16]
    assert [FOUR.padded(n) for n in (1, 3, 4)] == [1, 3, 4]


# -- fixed ----------------------------------------------------------------------------------


def test_exactly_full_starts_at_once() -> None:
    """C14: not when its wait is over, and not with one row more."""
    assert sent(outcome([NOW] * 4, IDLE)) == [(0, "FULL", [0, 1, 2, 3])]
    assert sent(outcome([NOW] * 3, IDLE)) == []


def test_a_partial_batch_starts_at_exactly_max_wait_from_submission() -> None:
    """C14: to the nanosecond."""
    submit = [NOW, NOW + 100 * MS, NOW + 200 * MS]
    for order in (submit, submit[::-1]):
        assert outcome(order, IDLE).decision.wake_at_ns == NOW + 5000 * MS
        assert sent(outcome(order, IDLE, now=NOW + 5000 * MS - 1)) == []
        assert sent(outcome(order, IDLE, now=NOW + 5000 * MS)) == [(0, "WAIT", [0, 1, 2])]


def test_fixed_is_exact_whatever_is_known() -> None:
    """C15: traffic and other workers change nothing."""
    crew = [WorkerView(number, 0, None, SLOW) for number in range(3)]
    for traffic in (None, DENSE, traffic_of(10**9)):
        assert sent(outcome([NOW], crew, now=NOW + 5000 * MS - 1, traffic=traffic)) == []
        at_limit = outcome([NOW], crew, now=NOW + 5000 * MS, traffic=traffic)
        assert sent(at_limit) == [(0, "WAIT", [0])]


def test_the_wait_counts_while_the_only_worker_is_busy() -> None:
    """C14: a batch of 3 s runs; one request comes at its start. It may not wait 3 s and
    then 5 s."""
    submit = [NOW]
    for later in (1, 3000, 5000, 8000):
        busy = outcome(submit, BUSY, now=NOW + later * MS)
        assert sent(busy) == []
        assert busy.decision.wake_at_ns == FAR, "only the deadline wakes it"
    assert sent(outcome(submit, IDLE, now=NOW + 3000 * MS)) == []
    assert outcome(submit, IDLE, now=NOW + 3000 * MS).decision.wake_at_ns == NOW + 5000 * MS
    assert sent(outcome(submit, IDLE, now=NOW + 6000 * MS)) == [(0, "WAIT", [0])]


def test_with_a_second_idle_worker_it_is_the_idle_one_that_runs() -> None:
    """C14: the wait counts from the arrival."""
    both = [WorkerView(0, 1), WorkerView(1, 0)]
    assert sent(outcome([NOW], both, now=NOW + 5000 * MS)) == [(1, "WAIT", [0])]
    assert sent(outcome([NOW] * 4, both)) == [(1, "FULL", [0, 1, 2, 3])]


def test_a_full_batch_may_queue_behind_the_one_that_runs_up_to_the_depth() -> None:
    limits = replace(FOUR, depth=2)
    assert sent(outcome([NOW] * 9, IDLE, limits)) == [
        (0, "FULL", [0, 1, 2, 3]),
        (0, "FULL", [4, 5, 6, 7]),
    ]
    assert sent(outcome([NOW] * 4, [WorkerView(0, 2)], limits)) == []
    assert sent(outcome([NOW] * 4, BUSY, replace(FOUR, depth=1))) == []


@pytest.mark.parametrize(("ms", "room"), [(0.2, 4), (3.0, 4), (3.1, 3), (6.0, 3), (6.1, 2)])
def test_full_batches_that_are_short_may_wait_at_the_worker(ms: float, room: int) -> None:
    """It would stand idle until the next one is there: what is dispatched beyond the depth lasts
    6 ms at most."""
    time = time_of(ms * MS, 0)
    for in_flight in range(6):
        worker = WorkerView(0, in_flight, None, time)
        found = sent(outcome([NOW] * 4, [worker], replace(FOUR, depth=2)))
        assert found == ([(0, "FULL", [0, 1, 2, 3])] if in_flight < room else [])
    assert sent(outcome([NOW] * 3, [WorkerView(0, 1, None, time)], replace(FOUR, depth=2))) == []


def test_a_worker_has_records_for_all_that_it_may_be_sent() -> None:
    assert Limits(1, 0).depth + AHEAD == RECORDS


def test_batches_go_round_the_workers() -> None:
    o = outcome([NOW] * 13, [WorkerView(5, 0), WorkerView(2, 0)])
    assert sent(o) == [
        (2, "FULL", [0, 1, 2, 3]),
        (5, "FULL", [4, 5, 6, 7]),
        (2, "FULL", [8, 9, 10, 11]),
    ]
    assert o.left == [12]


def test_of_two_that_are_as_busy_it_is_the_one_that_is_free_first() -> None:
    crew = [WorkerView(0, 1, None, SLOW, NOW + 90 * MS), WorkerView(1, 1, None, SLOW, NOW + 9 * MS)]
    assert sent(outcome([NOW] * 4, crew)) == [(1, "FULL", [0, 1, 2, 3])]


def test_no_wait_means_at_once_when_idle_and_company_while_busy() -> None:
    limits = replace(FOUR, max_wait_ns=0)
    assert sent(outcome([NOW], IDLE, limits)) == [(0, "IDLE", [0])]
    assert sent(outcome([NOW] * 3, BUSY, limits)) == []


@pytest.mark.parametrize("limits", [FOUR, ADAPTIVE])
def test_draining_lets_a_partial_batch_go(limits: Limits) -> None:
    limits, crew = replace(limits, draining=True), [WorkerView(0, 0, None, SLOW)]
    assert sent(outcome([NOW], crew, limits, traffic=DENSE)) == [(0, "DRAIN", [0])]
    assert sent(outcome([NOW] * 4, crew, limits, traffic=DENSE)) == [(0, "FULL", [0, 1, 2, 3])]


# -- deadlines ------------------------------------------------------------------------------


def test_a_row_at_its_deadline_is_late_and_one_before_is_not() -> None:
    limits = replace(FOUR, max_wait_ns=0)
    o = outcome([NOW - 9] * 3, IDLE, limits, deadline=[NOW - 1, NOW, NOW + 1])
    assert (o.expired, sent(o)) == ([0, 1], [(0, "IDLE", [2])])


def test_expiry_needs_no_worker_and_wakes_in_time() -> None:
    deadline = [NOW + 7 * MS, NOW + 3 * MS]
    o = outcome([NOW] * 2, [], deadline=deadline)
    assert (sent(o), o.expired, o.decision.wake_at_ns) == ([], [], NOW + 3 * MS)
    later = outcome([NOW] * 2, [], now=NOW + 3 * MS, deadline=deadline)
    assert (later.expired, later.decision.wake_at_ns) == ([1], NOW + 7 * MS)
    last = outcome([NOW] * 2, [], now=NOW + 7 * MS, deadline=deadline)
    assert (last.expired, last.decision.wake_at_ns) == ([0, 1], NEVER_NS)


@pytest.mark.parametrize(
    ("limits", "traffic"), [(FOUR, None), (replace(ADAPTIVE, max_wait_ns=500 * MS), DENSE)]
)
def test_a_deadline_leaves_just_the_time_to_run(
    limits: Limits, traffic: ArrivalEstimator | None
) -> None:
    """Two rows take (40 + 2) x 1.5 = 63 ms in 99 of 100 times."""
    crew = [WorkerView(0, 0, None, SLOW)]
    words = {"deadline": [FAR, NOW + 70 * MS]}
    early = outcome([NOW] * 2, crew, limits, NOW + 7 * MS - 1, traffic, **words)
    assert (sent(early), early.decision.wake_at_ns) == ([], NOW + 7 * MS)
    in_time = outcome([NOW] * 2, crew, limits, NOW + 7 * MS, traffic, **words)
    assert sent(in_time) == [(0, "DEADLINE", [0, 1])]


def test_a_deadline_leaves_time_for_the_stages_that_follow() -> None:
    """Two rows take 63 ms here, and 5 ms afterwards."""
    crew, words = [WorkerView(0, 0, None, SLOW)], {"deadline": NOW + 70 * MS}
    limits = FOUR.before(5 * MS)
    assert limits.target_ns == 0, "none comes of it"
    early = outcome([NOW] * 2, crew, limits, NOW + 2 * MS - 1, **words)
    assert (sent(early), early.decision.wake_at_ns) == ([], NOW + 2 * MS)
    assert sent(outcome([NOW] * 2, crew, limits, NOW + 2 * MS, **words)) == [
        (0, "DEADLINE", [0, 1])
    ]
    assert replace(FOUR, target_ns=30 * MS).before(40 * MS).target_ns == 1


def test_the_stages_on_the_cpu_have_limits_of_their_own() -> None:
    config = ModelConfig(import_name="m:M", preprocess_max_batch=5, postprocess_max_batch=7)
    stages = (Stage.PREPROCESS, Stage.POSTPROCESS)
    assert [Limits.of(config, stage) for stage in stages] == [
        Limits(5, 0, spreads=True, background_slowdown=0.25),
        Limits(7, 0, spreads=True, background_slowdown=0.25),
    ]
    assert not Limits.of(config).spreads


def test_the_time_to_run_is_that_of_the_padded_batch() -> None:
    """Two rows are run as four: (40 + 4) x 1.5 = 66 ms."""
    limits, crew = replace(FOUR, max_batch=8, sizes=(1, 4, 8)), [WorkerView(0, 0, None, SLOW)]
    o = outcome([NOW] * 2, crew, limits, deadline=NOW + 70 * MS)
    assert (sent(o), o.decision.wake_at_ns) == ([], NOW + 4 * MS)


def test_a_deadline_is_no_reason_where_the_wait_ends_first() -> None:
    crew = [WorkerView(0, 0, None, SLOW)]
    limits = replace(FOUR, max_wait_ns=7 * MS)
    o = outcome([NOW] * 2, crew, limits, NOW + 7 * MS, deadline=NOW + 70 * MS)
    assert sent(o) == [(0, "WAIT", [0, 1])]


def test_a_worker_of_unknown_times_waits_up_to_the_limit() -> None:
    for time in (None, ServiceTime()):
        o = outcome([NOW], [WorkerView(0, 0, None, time)], deadline=NOW + 1)
        assert (sent(o), o.decision.wake_at_ns) == ([], NOW + 1)


# -- adaptive -------------------------------------------------------------------------------


def adaptive(
    submit: Sequence[int],
    *,
    now: int = NOW,
    limits: Limits = ADAPTIVE,
    traffic: ArrivalEstimator | None = DENSE,
    crew: Sequence[WorkerView] = (WorkerView(0, 0, None, SLOW),),
) -> Outcome:
    return outcome(submit, list(crew), limits, now, traffic)


def test_where_company_is_near_a_partial_batch_waits_while_it_is_worth_it() -> None:
    """Until then, and not a nanosecond longer, if nobody comes."""
    limits = replace(ADAPTIVE, max_wait_ns=500 * MS)
    worth_ns = worth_until_ns(DENSE, 2, SLOW)
    assert NOW + MS < worth_ns < NOW + 40 * MS
    o = adaptive([NOW, NOW], limits=limits)
    assert (sent(o), o.decision.wake_at_ns) == ([], worth_ns)
    assert sent(adaptive([NOW, NOW], limits=limits, now=worth_ns - 1)) == []
    assert sent(adaptive([NOW, NOW], limits=limits, now=worth_ns)) == [(0, "IDLE", [0, 1])]


@pytest.mark.parametrize(("flood", "most_ns"), [(False, 4 * MS), (True, 6 * MS)])
def test_no_longer_than_max_wait_and_in_a_flood_than_its_peak(flood: bool, most_ns: int) -> None:
    """A worker does 64 rows in 104 ms; half of that is a row every 3.25 ms."""
    limits = Limits(64, 4 * MS, adaptive=True, max_wait_peak_ns=6 * MS)
    traffic = traffic_of(32 * MS // 10 if flood else 33 * MS // 10)
    assert worth_until_ns(traffic, 1, SLOW) > NOW + 6 * MS
    submit = [NOW + MS, NOW]
    o = adaptive(submit, limits=limits, traffic=traffic)
    assert (sent(o), o.decision.wake_at_ns) == ([], NOW + most_ns)
    before = adaptive(submit, limits=limits, traffic=traffic, now=NOW + most_ns - 1)
    assert sent(before) == []
    at_limit = adaptive(submit, limits=limits, traffic=traffic, now=NOW + most_ns)
    assert sent(at_limit) == [(0, "WAIT", [0, 1])]


def test_a_flood_is_measured_against_all_workers() -> None:
    limits = Limits(64, 4 * MS, adaptive=True, max_wait_peak_ns=6 * MS)
    traffic = traffic_of(32 * MS // 10)
    crew = [WorkerView(0, 0, None, SLOW), WorkerView(1, 1, None, SLOW, NOW + 900 * MS)]
    assert adaptive([NOW], limits=limits, traffic=traffic, crew=crew).decision.wake_at_ns == (
        NOW + 4 * MS
    )


def test_a_peak_below_max_wait_shortens_nothing() -> None:
    limits = replace(ADAPTIVE, max_wait_ns=4 * MS, max_wait_peak_ns=1 * MS)
    assert adaptive([NOW], limits=limits).decision.wake_at_ns == NOW + 4 * MS


def test_a_lone_request_on_an_idle_system_leaves_at_once() -> None:
    """C15: it pays no wait at all."""
    assert sent(adaptive([NOW], traffic=traffic_of(10**9))) == [(0, "IDLE", [0])]


@pytest.mark.parametrize("time", [None, ServiceTime(), time_of(0, 1 * MS)])
def test_where_nothing_is_known_or_nothing_saved_nobody_waits(time: ServiceTime | None) -> None:
    assert sent(adaptive([NOW], crew=[WorkerView(0, 0, None, time)])) == [(0, "IDLE", [0])]


def test_where_nothing_is_known_of_the_traffic_nobody_waits() -> None:
    assert sent(adaptive([NOW], traffic=None)) == [(0, "IDLE", [0])]
    assert sent(adaptive([NOW], traffic=ArrivalEstimator())) == [(0, "IDLE", [0])]


@pytest.mark.parametrize("busy", [0, 1])
def test_of_several_workers_each_gets_batches_that_keep_up(busy: int) -> None:
    """Two of them, a row every ms and 1.3 times that to have time left: 6.5 rows in 10 ms."""
    limits, traffic = replace(ADAPTIVE, max_batch=64, max_wait_ns=500 * MS), traffic_of(MS)
    crew = [
        WorkerView(0, 0, None, time_of(10 * MS, 0)),
        WorkerView(1, busy, None, time_of(10 * MS, 0)),
    ]
    o = adaptive([NOW] * 6, limits=limits, traffic=traffic, crew=crew)
    until_ns = NOW + int(_GAPS * traffic.gap_ns)
    assert (sent(o), o.decision.wake_at_ns) == ([], until_ns)
    enough = adaptive([NOW] * 7, limits=limits, traffic=traffic, crew=crew)
    assert sent(enough) == [(0, "IDLE", [*range(7)])]
    over = adaptive([NOW] * 6, limits=limits, traffic=traffic, crew=crew, now=until_ns)
    assert sent(over) == [(0, "IDLE", [*range(6)])]
    alone = adaptive([NOW], limits=limits, traffic=traffic_of(100 * MS), crew=crew)
    assert sent(alone) == [(0, "IDLE", [0])]


@pytest.mark.parametrize("limits", [FOUR, ADAPTIVE])
def test_a_closed_worker_gets_nothing_and_counts_for_none(limits: Limits) -> None:
    closed = WorkerView(0, 0, None, SLOW, NOW, closed=True)
    o = outcome([NOW] * 9, [closed], limits)
    assert (sent(o), o.decision.wake_at_ns) == ([], FAR)
    both = outcome([NOW] * 9, [closed, WorkerView(1, 0, None, SLOW)], limits)
    assert [worker for worker, _, _ in sent(both)] == [1]


@pytest.mark.parametrize(("able", "unable"), [(0, 1), (1, 0)])
@pytest.mark.parametrize("gap_ns", [MS // 10, 10**9])
def test_the_numbers_of_workers_make_no_difference(able: int, unable: int, gap_ns: int) -> None:
    """Also where an idle one has not mapped the lane of the row."""
    crew = [WorkerView(able, 0, mask(*range(LANES)), SLOW), WorkerView(unable, 0, mask(2), SLOW)]
    o = adaptive([NOW], crew=crew, traffic=traffic_of(gap_ns))
    assert sent(o) == ([(able, "IDLE", [0])] if gap_ns == 10**9 else [])


def test_a_full_batch_waits_for_nobody() -> None:
    assert sent(adaptive([NOW] * 4)) == [(0, "FULL", [0, 1, 2, 3])]


# -- lanes, and the common road -------------------------------------------------------------


def test_a_worker_that_lacks_a_lane_gets_the_rows_of_the_others() -> None:
    submit, lane = [NOW - 5000 * MS] * 4, [0, 1, 0, 2]
    only_two = WorkerView(0, 0, mask(2))
    assert sent(outcome(submit, [only_two], lane=lane)) == [(0, "WAIT", [3])]
    everything = outcome(submit, [only_two, WorkerView(1, 0)], lane=lane)
    assert sent(everything) == [(0, "WAIT", [3]), (1, "WAIT", [0, 1, 2])]


@pytest.mark.parametrize("rows", [1, 64, 4096])
@pytest.mark.parametrize("bucketed", [False, True])
def test_a_batch_from_the_front_is_a_slice(rows: int, bucketed: bool) -> None:
    """Taking a slice moves no memory: the common case must stay on that road."""
    o = outcome([NOW] * rows, IDLE, Limits(64, 0, bucketed=bucketed), bucket=3)
    assert all(isinstance(d.rows, slice) for d, _ in o.batches)
    assert o.batches[0][0].rows == slice(0, min(rows, 64))
