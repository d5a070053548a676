"""The header Authorization: the key that a caller shows, and the answer to one that shows none.

Programs show a key as `Bearer KEY` (RFC 6750). A browser cannot be told to; it asks its user for a
name and a password, and shows them as `Basic` (RFC 7617) with every request, the live page's stream
among them: the password is the key, the name is not read. Only a page is answered with that
question.
"""

from __future__ import annotations

import base64
import binascii

from batchpool.core.errors import Unauthorized
from batchpool.credentials.api_keys import ApiKeys
from batchpool.wire.request import Headers

REALM = 'realm="batchpool"'
_ASK = '; "Authorization: Bearer KEY" with a key of this server was expected'


def key_name(keys: ApiKeys, headers: Headers) -> str:
    """The name of the key that a request shows. Raises Unauthorized if it shows none of these."""
    shown = headers.get(b"authorization")
    if shown is None:
        raise _unauthorized("the header Authorization is absent", headers)
    scheme, _, credentials = shown.partition(b" ")
    scheme, credentials = scheme.lower(), credentials.strip(b" \t")
    if scheme == b"basic":
        credentials = _password(credentials)
    elif scheme != b"bearer":
        raise _unauthorized("the header Authorization has no Bearer in it", headers)
    name = keys.name_of(credentials)
    if not name:
        raise _unauthorized("the header Authorization has another key", headers, shown=True)
    return name


def _password(credentials: bytes) -> bytes:
    try:
        return base64.b64decode(credentials, validate=True).partition(b":")[2]
    except binascii.Error:
        return b""


def _unauthorized(reason: str, headers: Headers, *, shown: bool = False) -> Unauthorized:
    challenges = f"Bearer {REALM}" + (', error="invalid_token"' if shown else "")
    if b"text/html" in headers.get(b"accept", b""):
        challenges = f'Basic {REALM}, charset="UTF-8"'
    return Unauthorized(reason + _ASK, challenges)
