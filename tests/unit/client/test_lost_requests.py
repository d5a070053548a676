"""Requests under way in a lane whose pool has gone."""

from __future__ import annotations

import pytest

from tests.unit.client.lane_clients import LATER, NOW, Pool, new_lane_client, rows_of, send


def test_the_pool_is_gone() -> None:
    lane_client = new_lane_client()
    pool = Pool(lane_client)
    sent = [send(lane_client, 2, 1), send(lane_client, 1, 2), send(lane_client, 3, 3)]
    lane_client.abandon(sent[1])
    pool.admit()
    pool.finish(pool.rows[0])
    lane_client.reap(NOW)
    assert lane_client.fail_all() == [sent[0], sent[2]]
    assert lane_client.fail_all() == []


@pytest.mark.parametrize("batcher_ended", [False, True])
def test_a_request_that_no_batcher_admitted_did_not_run(batcher_ended: bool) -> None:
    lane_client = new_lane_client()
    pool = Pool(lane_client)
    admitted = send(lane_client, 2, 1)
    pool.admit()
    published = send(lane_client, 2, 2)
    queued = lane_client.submit(rows_of(1), NOW, LATER)
    lost = lane_client.fail_all(batcher_ended=batcher_ended)
    assert lost == [admitted, published, queued]
    ran = [pending.may_have_run for pending in lost]
    assert ran == [True, not batcher_ended, not batcher_ended]
