"""A lane between two processes: payloads with checksums out and back through the real code.

Payloads of no bytes, of the slot's size and one less, and of anything between; one more is
refused. Large ones are copied with non-temporal stores, which only the fence brings in order.
BATCHPOOL_LITMUS_SCALE multiplies the counts.
"""

from __future__ import annotations

import pytest

from batchpool.core.layout.slots import bound_of
from tests.litmus.processes import await_, scaled
from tests.litmus.roads import Road, kill_and_restart

MIB = 2**20
# glibc copies blocks of this size and more with non-temporal stores.
NON_TEMPORAL = {"GLIBC_TUNABLES": "glibc.cpu.x86_non_temporal_threshold=0x8000"}


@pytest.mark.parametrize(
    ("size", "slots", "total", "env"),
    [
        pytest.param(64, 1, 500, {}, id="one slot"),
        pytest.param(64, 12, 4_000, {}, id="small rows"),
        pytest.param(4096, 100, 4_000, {}, id="a page"),
        pytest.param(150_528, 12, 500, NON_TEMPORAL, id="images, non-temporal"),
        pytest.param(2 * MIB + 4096, 4, 50, {}, id="large rows"),
        pytest.param(2 * MIB + 4096, 4, 50, NON_TEMPORAL, id="large rows, non-temporal"),
    ],
)
def test_every_row_comes_back_whole_and_to_its_own_request(
    size: int, slots: int, total: int, env: dict[str, str]
) -> None:
    total = scaled(total)
    road = Road(size, slots, total)
    road.open()
    with road.both(env=env) as sides:
        client, server = sides.finish()
    assert client["sent"] == client["answered"] == server["echoed"] == total
    assert client["stale"] == server["stale"] == 0
    assert client["requests"] <= total
    for ring in ("sq", "cq"):
        assert road[f"{ring}_tail"] == road[f"{ring}_head"] == total
    assert road["claimed"] == road["refused"] == 0
    road.close()


def test_entries_seen_again_and_entries_never_written() -> None:
    """Entries that a batcher's death leaves behind: nothing is lost, doubled or mixed up."""
    total = scaled(4_000)
    road = Road(64, 12, total, crashes=0.05)
    road.open()
    with road.both() as sides:
        client, server = sides.finish()
    assert client["sent"] == client["answered"] == server["echoed"] == total
    assert server["crashes"] > 10
    assert server["stale"] > 10, "entries were seen again"
    assert road["cq_tail"] < total, "some rows were DONE without an entry"
    road.close()


def test_either_side_may_stop_anywhere() -> None:
    road = Road(4096, 12, None)
    road.open()
    most = bound_of(12, 0.90)
    with road.both() as sides:
        client, server = sides.sides
        for _ in range(scaled(4)):
            passed = road["cq_tail"] + 300
            await_(lambda: road["cq_tail"] > passed, "answers")  # noqa: B023
            server.stop()
            # A request has up to four rows: the client waits once the next may not fit.
            await_(lambda: road["claimed"] > most - 4, "a full lane")
            server.go_on()
            client.stop()
            await_(lambda: road["sq_tail"] == road["sq_head"] == road["cq_tail"], "an empty lane")
            client.go_on()
        sent, echoed = client.enough(), server.enough()
    assert sent["sent"] == sent["answered"] == echoed["echoed"] > 300 * scaled(4)
    road.close()


def test_a_server_killed_anywhere_loses_and_doubles_nothing() -> None:
    road = Road(64, 12, None)
    road.open()
    counted = kill_and_restart(road, kills=scaled(3), rows_between=500)
    assert counted["sent"] == counted["answered"] > 500 * scaled(3)
    road.close()
