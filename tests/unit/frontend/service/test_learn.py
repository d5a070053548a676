"""A serving front end takes over a reload's changes: limits, times and answers."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from batchpool.core.errors import TooLarge
from batchpool.core.layout.admission import bound_of
from batchpool.frontend.http.caller import Caller
from batchpool.frontend.http.request_head import RequestHead
from tests.unit.frontend.frontend_double import edge
from tests.unit.frontend.loops import on_loop
from tests.unit.frontend.models import Affine


@on_loop
async def test_a_front_end_goes_by_what_its_session_has_learnt() -> None:
    async with edge(Affine) as it:
        session, view = it.pool.session, it.view
        endpoint, facts = view.endpoints.by_model["affine"], session.models["affine"]
        assert endpoint.lane_client.allocator.bound == bound_of(64, 0.9)
        session.models["affine"] = replace(
            facts, watermark=0.5, request_timeout_s=2.5, max_batch=4, max_wait_ms=3.0
        )
        session.server = {**session.server, "max_body_mib": 1}
        view.learn()
        assert view.endpoints.by_model["affine"] is endpoint, "whoever holds it goes on with it"
        assert endpoint.lane_client.allocator.bound == 32
        assert endpoint.endpoint._limit_ns == 2_500_000_000
        config = json.loads(view.metadata.model_config("affine").body)
        assert config["max_batch_size"] == 4
        assert config["dynamic_batching"]["max_queue_delay_microseconds"] == 3000
        endpoint.check_head(RequestHead.of({b"content-length": b"%d" % 2**20}, Caller("peer")))
        head = RequestHead.of({b"content-length": b"%d" % (2**20 + 1)}, Caller("peer"))
        with pytest.raises(TooLarge, match=r"1048576 are taken: send .* max_body_mib"):
            endpoint.check_head(head)
