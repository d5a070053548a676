"""Callers that count as one: those of an IPv4 address, of a network of IPv6, of a key."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchpool.frontend.http.caller import Caller, network_of


@pytest.mark.parametrize(
    ("address", "origin"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("", ""),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::", "2001:db8:1:2::/64"),
        ("2001:DB8:1:2:0::9", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::9", "2001:db8:1:3::/64"),
        ("::1", "::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::ffff:203.0.113.7", "203.0.113.7"),
        ("_hidden:8080", "_hidden:8080"),
        ("unix:", "unix:"),
    ],
)
def test_the_origin_of_an_address(address: str, origin: str) -> None:
    assert network_of(address) == origin
    caller = Caller(address)
    assert (caller.address, caller.origin) == (address, origin)
    assert caller.flow == Caller(origin).flow or "/" in origin


@given(network=st.integers(1, 2**64 - 1), hosts=st.tuples(*[st.integers(0, 2**64 - 1)] * 2))
def test_a_host_of_a_network_is_one_caller_under_each_of_its_addresses(
    network: int, hosts: tuple[int, int]
) -> None:
    one, other = (Caller(str(ipaddress.IPv6Address(network << 64 | host))) for host in hosts)
    assert (one.origin, one.flow) == (other.origin, other.flow)
    neighbour = Caller(str(ipaddress.IPv6Address((network ^ 1) << 64 | hosts[0])))
    assert neighbour.origin != one.origin


def test_a_key_is_a_caller_of_its_own_from_whatever_address() -> None:
    assert Caller("2001:db8::1", "ann").flow == Caller("10.0.0.1", "ann").flow
    assert Caller("2001:db8::1", "ann").flow != Caller("2001:db8::1").flow
