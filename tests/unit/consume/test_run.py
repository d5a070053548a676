"""The start of `batchpool consume`: what is missing is an error of one line."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from batchpool.consume.plan import ConsumePlan
from batchpool.consume.run import connection_settings, consume
from batchpool.consume.topics import Topic
from batchpool.core.errors import ConfigError, StartError

pytest.importorskip("aiokafka")


def test_a_pool_that_does_not_run_is_no_traceback(tmp_path: Path) -> None:
    topics = [Topic("127.0.0.1:1", name) for name in ("texts", "vectors", "texts.dead")]
    plan = ConsumePlan(*topics, "minilm", "group", {}, "json", (), {}, {}, 0, "earliest")
    with pytest.raises(StartError, match=r"^no pool listens at .*/pool\.sock: there is no such"):
        asyncio.run(consume(plan, str(tmp_path / "pool.sock")))


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"acks": "0"}, "k.toml: unknown setting 'acks'; known: security_protocol, "),
        ({"client_id": 5}, "k.toml: client_id = 5: expected a text"),
        (
            {"security_protocol": "SASL"},
            'k.toml: security_protocol = "SASL": expected one of PLAINTEXT, SSL, SASL',
        ),
        ({"security_protocol": "SSL", "ssl_cafile": "/none.pem"}, "k.toml: its certificates can"),
    ],
)
def test_a_setting_of_the_connections_that_is_none(settings: dict[str, object], text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        connection_settings(settings, "k.toml")
    assert str(caught.value).startswith(text)


def test_good_settings_are_taken_as_they_are() -> None:
    settings = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN", "client_id": "a"}
    assert connection_settings(settings, "k.toml") == settings
