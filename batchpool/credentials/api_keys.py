"""The keys that callers show: a file with one a line, and the look-up of one that was shown.

    # comments and empty lines are passed over
    nightly:4f0c...           a name, and the key itself
    web:sha256:9f86d081...    a name, and the SHA-256 of the key in hexadecimal digits

Several keys may have one name, so that one can follow another. A key is found by a keyed hash of
its own hash (HMAC with a secret of this process): the time of a look-up says nothing of the keys.
No message has a key in it.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable

from batchpool.core.errors import ConfigError
from batchpool.credentials.secret_file import read_secret

KEY = "api_keys_file"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")  # RFC 6750, b64token
_HASHED = "sha256:"
_DIGEST = re.compile(r"[0-9A-Fa-f]{64}")


class ApiKeys:
    """A set of keys. entries: (name, SHA-256 of the key)."""

    def __init__(self, entries: Iterable[tuple[str, bytes]]) -> None:
        self._secret = secrets.token_bytes(32)
        self._names = {self._blinded(digest): name for name, digest in entries}

    def name_of(self, shown: bytes) -> str:
        """The name of the key that was shown; "" where it is none of these."""
        return self._names.get(self._blinded(hashlib.sha256(shown).digest()), "")

    def _blinded(self, digest: bytes) -> bytes:
        return hmac.digest(self._secret, digest, "sha256")


def read_api_keys(path: str, *, warn: bool = True) -> ApiKeys:
    """The keys in a file. Raises ConfigError, with the number of the line, for one that cannot be
    read, and as `read_secret`; a file without a key would lock everybody out. warn: as there."""
    try:
        lines = read_secret(KEY, path, warn=warn).decode("ascii").splitlines()
    except UnicodeDecodeError:
        raise ConfigError(f"{KEY} = {path!r}: it has characters that are not ASCII") from None
    entries: dict[bytes, str] = {}
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        where = f"{KEY} = {path!r}: line {number}"
        name, colon, key = text.partition(":")
        if not colon or not _NAME.fullmatch(name):
            raise ConfigError(
                f"{where} is not NAME:KEY or NAME:sha256:DIGITS; a name has letters, digits, '.',"
                " '_' and '-', at most 64"
            )
        digest = _digest(key)
        if digest is None:
            raise ConfigError(
                f"{where}, of {name}: expected a key of letters, digits and -._~+/, as `openssl"
                " rand -hex 32` makes one, or sha256: with 64 hexadecimal digits"
            )
        if entries.setdefault(digest, name) != name:
            raise ConfigError(f"{where}, of {name}: {entries[digest]} has the same key")
    if not entries:
        raise ConfigError(f"{KEY} = {path!r}: it has no key; expected lines NAME:KEY")
    return ApiKeys((name, digest) for digest, name in entries.items())


def _digest(key: str) -> bytes | None:
    if key.startswith(_HASHED):
        digits = key.removeprefix(_HASHED)
        return bytes.fromhex(digits) if _DIGEST.fullmatch(digits) else None
    return hashlib.sha256(key.encode()).digest() if _TOKEN.fullmatch(key) else None
