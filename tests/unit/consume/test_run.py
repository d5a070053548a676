"""The start of `batchpool consume`: what is missing is an error of one line."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from batchpool.consume.plan import ConsumePlan
from batchpool.consume.run import consume
from batchpool.consume.topics import Topic
from batchpool.core.errors import StartError

pytest.importorskip("aiokafka")


def test_a_pool_that_does_not_run_is_no_traceback(tmp_path: Path) -> None:
    topics = [Topic("127.0.0.1:1", name) for name in ("texts", "vectors", "texts.dead")]
    plan = ConsumePlan(*topics, "minilm", "group", {}, "json", (), {}, {}, 0, "earliest")
    with pytest.raises(StartError, match=r"^no pool listens at .*/pool\.sock: there is no such"):
        asyncio.run(consume(plan, str(tmp_path / "pool.sock")))
