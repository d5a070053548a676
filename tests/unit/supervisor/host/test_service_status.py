"""The herald under a clock of the test's own: what is told when, and when nothing is."""

from __future__ import annotations

import logging
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchpool.core.config.schema import Config, ModelConfig
from batchpool.core.config.server_table import ServerConfig
from batchpool.supervisor.host.sd_notify import Notifier
from batchpool.supervisor.host.service_status import NEVER_NS, ServiceStatus, notify_discovery

S = 1_000_000_000
START = 1000 * S


class NotifierDouble:
    def __init__(self, watchdog_s: float = 0) -> None:
        self.watchdog_ns = round(watchdog_s * S)
        self.told: list[dict[str, str | int]] = []

    def notify(self, **words: str | int) -> None:
        self.told.append(words)

    def flush(self) -> None:
        """Everything was sent."""


class Scene:
    """A pool whose status and standstill the test decides; it is looked at when it is due."""

    def __init__(self, watchdog_s: float = 0, **server: float) -> None:
        self.now_ns = START
        self.status = "loading"
        self.silent: list[str] = []
        self.notifier = NotifierDouble(watchdog_s)
        config = ServerConfig(**server)  # type: ignore[arg-type]
        notifier = cast(Notifier, self.notifier)
        self.service_status = ServiceStatus(
            notifier, config, lambda: self.status, lambda since_ns: self.silent, self.now_ns
        )

    def run(self, seconds: float) -> list[dict[str, str | int]]:
        """Messages that are sent in this time."""
        self.notifier.told.clear()
        end_ns = self.now_ns + round(seconds * S)
        while self.now_ns < end_ns:
            due_ns = self.service_status.tick(self.now_ns)
            assert due_ns > self.now_ns, "it would spin"
            self.now_ns = min(end_ns, due_ns)
        return list(self.notifier.told)

    def ready(self) -> list[dict[str, str | int]]:
        self.status = "serving"
        self.notifier.told.clear()
        self.service_status.ready(self.now_ns)
        return list(self.notifier.told)


EXTENSION = {"EXTEND_TIMEOUT_USEC": 30_000_000}


def test_a_load_asks_for_more_time_each_second_and_for_nothing_else() -> None:
    assert Scene().run(3) == [{"STATUS": "loading"}, EXTENSION, EXTENSION, EXTENSION]


def test_no_more_time_is_asked_for_once_load_timeout_s_is_over() -> None:
    scene = Scene(load_timeout_s=90)
    assert scene.run(90).count(EXTENSION) == 90
    assert scene.run(100) == []
    brief = Scene(load_timeout_s=1)
    assert brief.run(60).count(EXTENSION) == 60, "a process's start has a minute"
    assert brief.run(100) == []


def test_ready_ends_the_extensions() -> None:
    scene = Scene()
    scene.run(1)
    assert scene.ready() == [{"READY": 1, "STATUS": "serving"}]
    assert scene.run(100) == []


def test_a_status_is_told_when_it_changes() -> None:
    scene = Scene()
    scene.run(1)
    scene.ready()
    scene.status = "serving less"
    assert scene.run(5) == [{"STATUS": "serving less"}]
    scene.status = "serving"
    assert scene.run(5) == [{"STATUS": "serving"}]


def test_the_end_is_told_with_time_for_the_drain() -> None:
    for was_ready in (False, True):
        scene = Scene(watchdog_s=1, drain_s=100)
        scene.run(1)
        if was_ready:
            scene.ready()
        scene.status = "draining"
        scene.notifier.told.clear()
        scene.service_status.stopping()
        end = {"STOPPING": 1, "EXTEND_TIMEOUT_USEC": 125_000_000, "STATUS": "draining"}
        assert scene.notifier.told == [end]
        assert scene.run(10) == [], "neither extensions nor pings"


def test_the_watchdog_is_fed_at_half_of_its_time_once_ready() -> None:
    scene = Scene(watchdog_s=30)
    assert not any("WATCHDOG" in words for words in scene.run(100))
    scene.ready()
    scene.run(14.9)
    assert scene.notifier.told == []
    assert scene.run(30) == [{"WATCHDOG": 1}] * 2


def test_who_stands_still_holds_the_pings_back_until_he_moves(
    caplog: pytest.LogCaptureFixture,
) -> None:
    scene = Scene(watchdog_s=30)
    scene.ready()
    scene.run(20)
    scene.silent = ["batcher (pid 7)"]
    with caplog.at_level(logging.ERROR, "batchpool.supervisor"):
        assert scene.run(100) == []
    (record,) = caplog.records
    assert record.getMessage() == ("the watchdog is not told to wait: batcher (pid 7) stands still")
    scene.silent = []
    assert scene.run(0.3) == [{"WATCHDOG": 1}], "at once, as it may be late"


def test_a_look_too_early_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene(watchdog_s=8)
    scene.ready()
    scene.run(3.9)
    scene.silent = ["frontend 0 (pid 8)"]
    scene.run(1.5)
    scene.silent = []
    assert scene.run(0.3) == [{"WATCHDOG": 1}]
    assert caplog.records == []


@settings(max_examples=50)
@given(st.floats(1, 60), st.lists(st.tuples(st.booleans(), st.floats(0.1, 50)), max_size=12))
def test_a_ping_means_that_everybody_has_moved_since_the_one_before(
    watchdog_s: float, times: list[tuple[bool, float]]
) -> None:
    """And those who move are never late by more than a look beyond half of the time."""
    scene = Scene(watchdog_s)
    scene.ready()
    for moving, seconds in times:
        scene.silent = [] if moving else ["batcher"]
        pings = scene.run(seconds)
        if moving:
            assert len(pings) >= int((seconds - 0.25) / (watchdog_s / 2) - 1e-6)
        else:
            assert pings == []


def test_a_watchdog_that_is_too_quick_for_the_pool_is_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    Scene(watchdog_s=30, stall_timeout_s=4).ready()
    Scene(watchdog_s=3, stall_timeout_s=0).ready()
    Scene(watchdog_s=0, stall_timeout_s=4).ready()
    assert caplog.records == []
    Scene(watchdog_s=4, stall_timeout_s=4).ready()
    (record,) = caplog.records
    assert record.getMessage().startswith(
        "WatchdogSec = 4 s is not longer than stall_timeout_s = 4"
    )


def test_where_nobody_listens_nothing_is_looked_at() -> None:
    def asked(*_: int) -> str:
        raise AssertionError("asked for nobody")

    service_status = ServiceStatus(Notifier(), ServerConfig(), asked, asked, START)
    assert service_status.tick(START) == NEVER_NS


def test_the_discovery_may_take_load_timeout_s_for_each_model() -> None:
    notifier = NotifierDouble()
    models = (ModelConfig(import_name="a:B"), ModelConfig(import_name="a:C"))
    notify_discovery(cast(Notifier, notifier), Config(ServerConfig(load_timeout_s=100), models))
    assert notifier.told == [{"STATUS": "importing a:B, a:C", "EXTEND_TIMEOUT_USEC": 230_000_000}]


def test_a_reload_is_told_with_its_time_and_ends_with_ready() -> None:
    scene = Scene(watchdog_s=30)
    scene.ready()
    scene.notifier.told.clear()
    scene.status = "serving; reloading"
    scene.service_status.reloading(scene.now_ns)
    asked = {"RELOADING": 1, "MONOTONIC_USEC": scene.now_ns // 1000, "STATUS": "serving; reloading"}
    assert scene.notifier.told == [asked]
    told = scene.run(61)
    assert 60 <= told.count(EXTENSION) <= 62
    assert told.count({"WATCHDOG": 1}) == 4, "the watchdog goes on"
    scene.status = "serving"
    scene.notifier.told.clear()
    scene.service_status.reloaded()
    scene.service_status.reloaded()
    assert scene.notifier.told == [{"READY": 1, "STATUS": "serving"}]
    assert EXTENSION not in scene.run(10)


def test_the_end_ends_a_reload_and_the_last_configuration_counts() -> None:
    scene = Scene(drain_s=100)
    scene.ready()
    scene.service_status.reloading(scene.now_ns)
    scene.service_status.set_server(ServerConfig(drain_s=5))
    scene.notifier.told.clear()
    scene.service_status.stopping()
    scene.service_status.reloaded()
    (end,) = scene.notifier.told
    assert (end["STOPPING"], end["EXTEND_TIMEOUT_USEC"]) == (1, 30_000_000)
