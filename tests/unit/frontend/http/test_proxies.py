"""Trusted proxies name their callers, and nobody else may."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchpool.frontend.http import proxies
from batchpool.frontend.http.caller import Caller, Site
from batchpool.frontend.http.proxies import TrustedProxies, address_of, plain_address, site_of

PROXIES = TrustedProxies(["127.0.0.1", "10.0.0.0/8", "2001:db8:1::/48"])
PEER = Caller("127.0.0.1")


def said(*lines: str, name: bytes = b"x-forwarded-for") -> str:
    """The caller's address by these lines of one header."""
    fields = [(b"host", b"pool"), *((name, line.encode("latin-1")) for line in lines)]
    return PROXIES.caller(PEER, fields).address


@pytest.mark.parametrize(
    ("lines", "address"),
    [
        ((), "127.0.0.1"),
        (("203.0.113.7",), "203.0.113.7"),
        (("1.1.1.1, 203.0.113.7, 10.1.2.3",), "203.0.113.7"),
        (("1.1.1.1", "203.0.113.7", "10.1.2.3"), "203.0.113.7"),
        (("\t 203.0.113.7 \t,10.0.0.1",), "203.0.113.7"),
        (("203.0.113.7:4711",), "203.0.113.7"),
        (("[2001:db8::7]:4711, 10.0.0.1",), "2001:db8::7"),
        (("2001:DB8:0:0::7",), "2001:db8::7"),
        (("198.51.100.1, 2001:db8:1::9",), "198.51.100.1"),
        (("::ffff:203.0.113.7",), "203.0.113.7"),
        (("10.0.0.9, 10.0.0.8",), "10.0.0.9"),
    ],
)
def test_the_caller_is_the_rightmost_address_that_is_not_trusted(
    lines: tuple[str, ...], address: str
) -> None:
    assert said(*lines) == address


@pytest.mark.parametrize(
    "garbage",
    ["", ",", "unknown", "_hidden", "1.2.3", "1.2.3.4:x", "[::1", "[::1]x", "fe80::1%eth0",
     "\xff\xfe", "<script>", "1" * 5000, "1.2.3.4.5", ":80"],
)  # fmt: skip
def test_garbage_ends_the_reading_at_the_hop_before_it(garbage: str) -> None:
    assert said(garbage) == "127.0.0.1"
    assert said(f"{garbage}, 10.0.0.1") == "10.0.0.1"
    assert said(f"{garbage}, 203.0.113.7") == "203.0.113.7"


@pytest.mark.parametrize(
    ("line", "address"),
    [
        ("x, for=203.0.113.7", "203.0.113.7"),
        ("for=1.1.1.1;x, for=10.0.0.1", "10.0.0.1"),
        ("a1=x;for=203.0.113.7", "203.0.113.7"),
        ("a=," * 20_000 + "for=203.0.113.7", "203.0.113.7"),
        ("for=203.0.113.7" + ";a=b" * 5000, "127.0.0.1"),
    ],
)
def test_what_cannot_be_read_of_forwarded_hides_nothing_behind_it(line: str, address: str) -> None:
    assert said(line, name=b"forwarded") == address


@given(
    st.text(st.characters(max_codepoint=255)), st.sampled_from([b"x-forwarded-for", b"forwarded"])
)
def test_no_header_is_an_error(text: str, name: bytes) -> None:
    fields = [(name, text.encode("latin-1"))]
    assert PROXIES.caller(PEER, fields).address
    site_of(dict(fields), "http", "", trusted=True)


def test_of_endless_hops_the_nearest_are_read() -> None:
    assert said("203.0.113.7, " + "10.0.0.1, " * 5000 + "10.0.0.2") == "10.0.0.1"


@pytest.mark.parametrize(
    ("line", "address"),
    [
        ("for=203.0.113.7", "203.0.113.7"),
        ('For="[2001:db8::7]:4711";proto=https, for=10.0.0.1;by=10.0.0.2', "2001:db8::7"),
        ('for=1.1.1.1, for="203.0.113.7:80"', "203.0.113.7"),
        ("for=unknown, for=10.0.0.1", "10.0.0.1"),
        ("proto=https", "127.0.0.1"),
        ('for="203.0.113.7', "127.0.0.1"),
    ],
)
def test_forwarded_says_the_same(line: str, address: str) -> None:
    assert said(line, name=b"forwarded") == address


def test_forwarded_is_not_read_beside_x_forwarded_for() -> None:
    fields = [(b"forwarded", b"for=1.1.1.1"), (b"x-forwarded-for", b"203.0.113.7")]
    assert PROXIES.caller(PEER, fields).address == "203.0.113.7"


def test_everybody_trusted_is_read_to_the_farthest() -> None:
    everybody = TrustedProxies(["*"])
    fields = [(b"x-forwarded-for", b"203.0.113.7, 8.8.8.8, 10.0.0.1")]
    assert everybody.caller(Caller("192.0.2.1"), fields).address == "203.0.113.7"
    assert everybody.trusts("")
    assert everybody.trusts("unix")


def test_unix_peers_are_trusted_by_their_own_word() -> None:
    assert TrustedProxies(["unix:"]).trusts("unix")
    assert not TrustedProxies(["127.0.0.1"]).trusts("unix")
    assert not TrustedProxies(["unix:"]).trusts("127.0.0.1")
    assert not TrustedProxies([]).trusts("")


def test_callers_of_one_proxy_have_flows_of_their_own() -> None:
    one = PROXIES.caller(PEER, [(b"x-forwarded-for", b"203.0.113.7")])
    other = PROXIES.caller(PEER, [(b"x-forwarded-for", b"203.0.113.8")])
    assert len({one.flow, other.flow, PEER.flow}) == 3
    assert one.flow == Caller("203.0.113.7").flow, "as if it had come by itself"


def test_the_site_is_as_the_trusted_proxy_shows_it() -> None:
    headers = {
        b"host": b"upstream:8000",
        b"x-forwarded-proto": b"HTTPS, http",
        b"x-forwarded-host": b"models.example.com:8443",
        b"x-forwarded-prefix": b"/pool/",
    }
    expected = Site("https", "models.example.com:8443", "/pool")
    assert site_of(headers, "http", "", trusted=True) == expected
    assert site_of(headers, "http", "/own", trusted=False) == Site("http", "upstream:8000", "/own")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (b"x-forwarded-proto", b"javascript"),
        (b"x-forwarded-host", b"evil.com/path"),
        (b"x-forwarded-host", b"a b"),
        (b"x-forwarded-prefix", b"//evil.com"),
        (b"x-forwarded-prefix", b"/a/../b"),
        (b"x-forwarded-prefix", b'/"><script>'),
        (b"x-forwarded-prefix", b"pool"),
        (b"forwarded", b'host="evil.com/x";proto=ftp'),
    ],
)
def test_a_site_that_cannot_be_is_not_taken_over(name: bytes, value: bytes) -> None:
    found = site_of({b"host": b"pool:1", name: value}, "http", "/own", trusted=True)
    assert found == Site("http", "pool:1", "/own")


def test_forwarded_says_scheme_and_host_of_the_first_proxy() -> None:
    headers = {b"host": b"up", b"forwarded": b'for=1.1.1.1;proto=https;host="a.b:1", proto=http'}
    assert site_of(headers, "http", "", trusted=True) == Site("https", "a.b:1", "")


def test_an_address_of_ipv4_has_one_spelling() -> None:
    assert plain_address("::ffff:127.0.0.1") == "127.0.0.1"
    assert plain_address("::FFFF:0:0:1") == "::ffff:0:0:1"
    assert plain_address("pool") == ""
    assert address_of("0:0:0:0:0:ffff:cb00:7107") == "203.0.113.7"


def test_nothing_long_is_kept() -> None:
    kept = proxies._address_of.cache_info().currsize
    for number in range(3):
        assert address_of(f"{number}" * 5000) == ""
    assert proxies._address_of.cache_info().currsize == kept
