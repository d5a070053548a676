"""The forms of network names in the configuration: addresses of proxies and stores, origins, hosts.
Pure."""

from __future__ import annotations

import ipaddress
import re

ANY = "*"
UNIX_PEERS = "unix:"  # as in nginx: whoever connects over a unix socket
PREFIX = re.compile(r"(/(?!\.{1,2}(/|$))[A-Za-z0-9._~!$&'()*+,;=:@-]+)+")
_NAME_AND_PORT = r"[A-Za-z0-9._-]+(:[0-9]{1,5})?"
_SERVER = rf"({_NAME_AND_PORT}|\[[0-9A-Fa-f:.]+\](:[0-9]{{1,5}})?)"
_USER = r"([^\s@/?]+@)?"
_TLS_OPTION = r"(ssl_(ca_certs|certfile|keyfile)=/[^\s&]+|ssl_check_hostname=(true|false))"
_TLS_OPTIONS = rf"(\?{_TLS_OPTION}(&{_TLS_OPTION})*)?"
# A password passes: has_password refuses it in a text that does not show it.
STORE_URL = re.compile(
    rf"redis://{_USER}{_SERVER}(,{_SERVER})*(/[0-9]*)?"
    rf"|rediss://{_USER}{_SERVER}(,{_SERVER})*(/[0-9]*)?{_TLS_OPTIONS}"
    rf"|unix://{_USER}/[^\s?]+(\?db=[0-9]+)?"
    rf"|redis\+sentinel://{_USER}{_SERVER}(,{_SERVER})*/[^\s/?]+(/[0-9]+)?"
    rf"|rediss\+sentinel://{_USER}{_SERVER}(,{_SERVER})*/[^\s/?]+(/[0-9]+)?{_TLS_OPTIONS}"
)
_PASSWORD = re.compile(r"[a-z+]+://[^/?]*:[^/?]*@|[?&](username|password)=")
_ORIGIN = re.compile(r"https?://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?")
_HOST = re.compile(r"(\*\.)?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")


def is_trusted_peer(text: str) -> bool:
    """True for an address, a network without host bits, "unix:" or "*"."""
    if text in (ANY, UNIX_PEERS):
        return True
    try:
        ipaddress.ip_network(text)
    except ValueError:
        return False
    return "%" not in text


def has_password(url: str) -> bool:
    """True for the address of a server with a password, or a user with one, in it."""
    return _PASSWORD.search(url) is not None


def is_origin(text: str) -> bool:
    """True for what a browser sends as Origin ("https://example.com", "null"), and for "*"."""
    return text in (ANY, "null") or _ORIGIN.fullmatch(text) is not None


def is_host(text: str) -> bool:
    """True for a host name or address without a port, "*.example.com" and "*"."""
    if text == ANY or _HOST.fullmatch(text):
        return True
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
