"""The web pages that may make a browser run inference here."""

from __future__ import annotations

import pytest

from batchpool.core.errors import Forbidden
from batchpool.frontend.http.caller import Site
from batchpool.frontend.http.origins import Origins

SITE = Site("http", "models.example.com:8000")
EVIL = b"https://evil.example"


def passes(headers: dict[bytes, bytes], *allowed: str, method: str = "POST") -> bool:
    try:
        Origins(allowed).check(method, headers, SITE)
    except Forbidden:
        return False
    return True


@pytest.mark.parametrize(
    ("headers", "passed"),
    [
        ({}, True),
        ({b"origin": b"http://models.example.com:8000"}, True),
        ({b"origin": b"HTTP://Models.Example.com:8000"}, True),
        ({b"origin": b"http://models.example.com"}, False),
        ({b"origin": EVIL}, False),
        ({b"origin": b"null"}, False),
        ({b"origin": b""}, True),
        ({b"origin": b"\xff"}, False),
        ({b"sec-fetch-site": b"cross-site"}, False),
        ({b"sec-fetch-site": b"same-site"}, False),
        ({b"sec-fetch-site": b"anything"}, False),
        ({b"sec-fetch-site": b"same-origin", b"origin": EVIL}, True),
        ({b"sec-fetch-site": b"none"}, True),
        ({b"sec-fetch-site": b"cross-site", b"origin": b"http://models.example.com:8000"}, False),
    ],
)
def test_pages_of_other_sites_run_nothing(headers: dict[bytes, bytes], passed: bool) -> None:
    assert passes(headers) is passed


def test_a_listed_origin_may() -> None:
    asked = {b"origin": EVIL, b"sec-fetch-site": b"cross-site"}
    assert passes(asked, "https://Evil.example")
    assert not passes(asked, "http://evil.example")
    assert not passes(asked, "https://evil.example:8443")
    assert passes(asked, "*")
    assert passes({b"origin": b"null"}, "null")


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS"])
def test_queries_may_be_made(method: str) -> None:
    assert passes({b"origin": EVIL}, method=method)


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "QUERY"])
def test_any_other_method_may_not(method: str) -> None:
    assert not passes({b"origin": EVIL}, method=method)


def test_the_port_of_the_scheme_may_be_left_out() -> None:
    check = Origins(()).check
    check("POST", {b"origin": b"https://a.b"}, Site("https", "a.b:443"))
    check("POST", {b"origin": b"http://a.b:80"}, Site("http", "a.b"))
    with pytest.raises(Forbidden):
        check("POST", {b"origin": b"https://a.b"}, Site("http", "a.b:80"))
