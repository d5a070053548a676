"""A lane between two processes: payloads with checksums out and back by the package's code.

Payloads of no bytes, of the slot's size and one less, and of anything between; one more is
refused. Large ones are copied with non-temporal stores, which only the fence brings in order.
BATCHPOOL_LITMUS_SCALE multiplies the counts.
"""

from __future__ import annotations

import pytest

from batchpool.core.layout.admission import bound_of
from tests.litmus.echo_lane import EchoLane, kill_and_restart
from tests.litmus.processes import await_, scaled

MIB = 2**20
ARENA_ROWS = 6  # of the largest size, of which a request has up to four
# glibc copies blocks of this size and more with non-temporal stores.
NON_TEMPORAL = {"GLIBC_TUNABLES": "glibc.cpu.x86_non_temporal_threshold=0x8000"}


@pytest.mark.parametrize(
    ("size", "slots", "total", "env", "arena_rows"),
    [
        pytest.param(64, 1, 500, {}, 0, id="one slot"),
        pytest.param(64, 12, 4_000, {}, 0, id="small rows"),
        pytest.param(4096, 100, 4_000, {}, 0, id="a page"),
        pytest.param(150_528, 12, 500, NON_TEMPORAL, 0, id="images, non-temporal"),
        pytest.param(2 * MIB + 4096, 4, 50, {}, 0, id="large rows"),
        pytest.param(2 * MIB + 4096, 4, 50, NON_TEMPORAL, 0, id="large rows, non-temporal"),
        pytest.param(64, 12, 2_000, {}, ARENA_ROWS, id="small rows, arena"),
        pytest.param(150_528, 12, 400, NON_TEMPORAL, ARENA_ROWS, id="images, arena"),
        pytest.param(2 * MIB + 4096, 8, 50, NON_TEMPORAL, ARENA_ROWS, id="large rows, arena"),
    ],
)
def test_every_row_comes_back_whole_and_to_its_own_request(
    size: int, slots: int, total: int, env: dict[str, str], arena_rows: int
) -> None:
    """C21: payloads with checksums, both ways; inputs in slots of their own, and in an arena."""
    total = scaled(total)
    echo_lane = EchoLane(size, slots, total, arena_rows)
    echo_lane.open()
    with echo_lane.both(env=env) as sides:
        client, server = sides.finish()
    assert client["sent"] == client["answered"] == server["echoed"] == total
    assert client["stale"] == server["stale"] == 0
    assert client["requests"] <= total
    for ring in ("sq", "cq"):
        assert echo_lane[f"{ring}_tail"] == echo_lane[f"{ring}_head"] == total
    assert echo_lane["claimed"] == echo_lane["refused"] == 0
    echo_lane.close()


def test_entries_seen_again_and_entries_never_written() -> None:
    """Entries that a batcher's death leaves behind: nothing is lost, doubled or mixed up."""
    total = scaled(4_000)
    echo_lane = EchoLane(64, 12, total, crashes=0.05)
    echo_lane.open()
    with echo_lane.both() as sides:
        client, server = sides.finish()
    assert client["sent"] == client["answered"] == server["echoed"] == total
    assert server["crashes"] > 10
    assert server["stale"] > 10, "entries were seen again"
    assert echo_lane["cq_tail"] < total, "some rows were DONE without an entry"
    echo_lane.close()


def test_either_side_may_stop_anywhere() -> None:
    """C21: SIGSTOP and SIGCONT change nothing."""
    echo_lane = EchoLane(4096, 12, None)
    echo_lane.open()
    most = bound_of(12, 0.90)
    with echo_lane.both() as sides:
        client, server = sides.sides
        for _ in range(scaled(4)):
            passed = echo_lane["cq_tail"] + 300
            await_(lambda: echo_lane["cq_tail"] > passed, "answers")  # noqa: B023
            server.stop()
            # A request has up to four rows: the client waits once the next may not fit.
            await_(lambda: echo_lane["claimed"] > most - 4, "a full lane")
            server.resume()
            client.stop()
            await_(
                lambda: echo_lane["sq_tail"] == echo_lane["sq_head"] == echo_lane["cq_tail"],
                "an empty lane",
            )
            client.resume()
        sent, echoed = client.end(), server.end()
    assert sent["sent"] == sent["answered"] == echoed["echoed"] > 300 * scaled(4)
    echo_lane.close()


def test_a_server_killed_anywhere_loses_and_doubles_nothing() -> None:
    echo_lane = EchoLane(64, 12, None)
    echo_lane.open()
    counted = kill_and_restart(echo_lane, kills=scaled(3), rows_between=500)
    assert counted["sent"] == counted["answered"] > 500 * scaled(3)
    echo_lane.close()
