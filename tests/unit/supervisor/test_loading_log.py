"""A pool whose models take long to load says every ten seconds what it waits for."""

from __future__ import annotations

import pytest

from batchpool.supervisor.loading_log import LoadingLog

S = 1_000_000_000


def test_the_state_is_logged_every_ten_seconds(caplog: pytest.LogCaptureFixture) -> None:
    states = iter(["loading a on cpu; 0 of 2 workers warm", "loading b on cpu; 1 of 2 warm"])
    log = LoadingLog(lambda: next(states), 100 * S)
    with caplog.at_level("INFO"):
        assert log.tick(100 * S) == 110 * S
        assert log.tick(109 * S) == 110 * S
        assert caplog.messages == []
        assert log.tick(112 * S) == 122 * S
        assert log.tick(121 * S) == 122 * S
        assert caplog.messages == ["still loading a on cpu; 0 of 2 workers warm"]
        assert log.tick(122 * S) == 132 * S
        assert caplog.messages[1:] == ["still loading b on cpu; 1 of 2 warm"]
