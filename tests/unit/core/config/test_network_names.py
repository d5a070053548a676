"""The names of peers, origins and hosts that a configuration may have."""

from __future__ import annotations

import pytest

from batchpool.core.config.network_names import PREFIX, is_host, is_origin, is_trusted_peer
from batchpool.core.config.server_table import ServerConfig
from batchpool.core.errors import ConfigError


@pytest.mark.parametrize("text", ["127.0.0.1", "10.0.0.0/8", "::1", "2001:db8::/32", "unix:", "*"])
def test_a_peer_that_may_be_trusted(text: str) -> None:
    assert is_trusted_peer(text)


@pytest.mark.parametrize("text", ["", "localhost", "10.0.0.1/8", "10.0.0.0/33", "fe80::1%x", "**"])
def test_no_peer(text: str) -> None:
    assert not is_trusted_peer(text)


@pytest.mark.parametrize("text", ["https://example.com", "http://[::1]:80", "null", "*"])
def test_an_origin(text: str) -> None:
    assert is_origin(text)


@pytest.mark.parametrize("text", ["", "example.com", "https://a.b/", "ftp://a", "https://*.a.b"])
def test_no_origin(text: str) -> None:
    assert not is_origin(text)


@pytest.mark.parametrize("text", ["example.com", "*.example.com", "10.0.0.1", "::1", "*", "pool_1"])
def test_a_host(text: str) -> None:
    assert is_host(text)


@pytest.mark.parametrize("text", ["", "a:80", "[::1]", "a.*.b", "*a.b", "a..b", "a/b"])
def test_no_host(text: str) -> None:
    assert not is_host(text)


@pytest.mark.parametrize(
    ("path", "legal"),
    [("/pool", True), ("/a/b-c", True), ("/pool/", False), ("pool", False), ("//a", False),
     ("/..", False), ("/a/../b", False), ("/a/..b", True), ("/", False), ("/a b", False)],
)  # fmt: skip
def test_a_path_that_a_proxy_shows_the_server_under(path: str, legal: bool) -> None:
    assert (PREFIX.fullmatch(path) is not None) is legal


def test_a_list_may_be_one_text_with_commas() -> None:
    config = ServerConfig(forwarded_allow_ips="127.0.0.1, 10.0.0.0/8")  # type: ignore[arg-type]
    assert config.forwarded_allow_ips == ("127.0.0.1", "10.0.0.0/8")
    assert ServerConfig(cors_origins="").cors_origins == ()  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [["localhost"], [1], 1, "a b", {"a": 1}])
def test_what_is_no_list_of_them_is_refused_with_the_forms(value: object) -> None:
    with pytest.raises(ConfigError, match=r"forwarded_allow_ips = .*: expected a list of"):
        ServerConfig(forwarded_allow_ips=value)  # type: ignore[arg-type]
