"""A clock that a machine's clock cannot set back."""

from __future__ import annotations

from batchpool.batches.forward_clock import ForwardClock

MS = 1_000_000
HOUR = 3_600_000


class Machine:
    """A machine's two clocks, in ms. started: how long it has been up."""

    def __init__(self) -> None:
        self.wall, self.started = 10 * HOUR, 5
        self.clock = ForwardClock(lambda: self.wall * MS, lambda: self.started * MS)

    def passes(self, ms: int) -> None:
        self.wall += ms
        self.started += ms


def test_it_is_the_machines_clock() -> None:
    machine = Machine()
    machine.passes(7)
    assert machine.clock() == machine.wall


def test_a_clock_that_is_set_back_does_not_take_it_along() -> None:
    machine = Machine()
    machine.wall -= HOUR
    assert machine.clock() == 10 * HOUR
    machine.passes(2000)
    assert machine.clock() == 10 * HOUR + 2000, "what waits two seconds waits two seconds"


def test_a_clock_that_is_put_forward_does() -> None:
    """As after a sleep, which counts for what waits."""
    machine = Machine()
    machine.wall += HOUR
    assert machine.clock() == 11 * HOUR
    machine.wall -= HOUR // 2
    machine.passes(1)
    assert machine.clock() == 11 * HOUR + 1
