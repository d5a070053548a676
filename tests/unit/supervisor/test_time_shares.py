"""The requests of one user get a fifth of the supervisor's time."""

from __future__ import annotations

from batchpool.supervisor.time_shares import TimeShares

MS = 1_000_000


def test_who_asks_without_end_gets_a_fifth() -> None:
    shares, now_ns, worked_ns = TimeShares(), 0, 0
    while now_ns < 100_000 * MS:
        now_ns += 2 * MS
        worked_ns += 2 * MS
        shares.spend(1000, now_ns, 2 * MS)
        now_ns = shares.resume_at_ns(1000, now_ns) or now_ns
    assert 0.2 <= worked_ns / now_ns < 0.21


def test_half_a_second_of_work_may_come_at_once() -> None:
    shares = TimeShares()
    for i in range(1, 6):
        assert shares.resume_at_ns(1000, i * 100 * MS) == 0
        shares.spend(1000, i * 100 * MS, 100 * MS)
    shares.spend(1000, 600 * MS, 100 * MS)
    assert shares.resume_at_ns(1000, 600 * MS) > 600 * MS
    assert shares.resume_at_ns(1001, 600 * MS) == 0, "another user"
    assert shares.resume_at_ns(1000, 60_000 * MS) == 0


def test_who_owes_a_little_is_read_on_however_late_it_is() -> None:
    shares, now_ns = TimeShares(), 10**15
    shares.spend(1000, now_ns, 100 * MS)
    assert shares.resume_at_ns(1000, now_ns) == 0
    shares.spend(1000, now_ns, 500 * MS)
    assert shares.resume_at_ns(1000, now_ns) == now_ns + 900 * MS, "3 s of parts, less 2 and 0.1"
