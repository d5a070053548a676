"""The server's certificate and key, as PEM files, in a TLS context of the standard library."""

from __future__ import annotations

import ssl

from batchpool.core.errors import ConfigError
from batchpool.credentials.secret_file import read_secret

_CERTIFICATE, _KEY = "ssl_certfile", "ssl_keyfile"


def server_context(certfile: str, keyfile: str, *, warn: bool = True) -> ssl.SSLContext:
    """The context of a server: TLS 1.2 and newer, HTTP/1.1.

    certfile: the certificate, and those that lead to a known authority. keyfile: its key; "" where
    it stands in certfile. Raises ConfigError for files that cannot be read or do not fit each
    other, and for a key with a password. warn: log that everybody may read the key.
    """
    read_secret(_CERTIFICATE, certfile, warn=warn and not keyfile)
    if keyfile:
        read_secret(_KEY, keyfile, warn=warn)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols(["http/1.1"])
    load_certificate(context, certfile, keyfile)
    return context


def load_certificate(context: ssl.SSLContext, certfile: str, keyfile: str) -> None:
    """Let a context take these files for the connections to come. Raises ConfigError."""
    asked = []

    def password() -> str:
        asked.append(True)
        return ""

    named = f"{_CERTIFICATE} = {certfile!r}" + (f", {_KEY} = {keyfile!r}" if keyfile else "")
    try:
        context.load_cert_chain(certfile, keyfile or None, password)
    except ssl.SSLError as exc:
        raise ConfigError(f"{named}: {_reason(exc, encrypted=bool(asked))}") from None
    except (OSError, ValueError) as exc:
        raise ConfigError(f"{named}: cannot read it: {exc}") from None


def _reason(error: ssl.SSLError, *, encrypted: bool) -> str:
    if encrypted:
        return (
            "the key has a password, which nobody could enter here; expected one without, as"
            " `openssl pkey -in KEY -out NEW` writes it"
        )
    if error.reason == "KEY_VALUES_MISMATCH":
        return "the key belongs to another certificate"
    return (
        "expected a certificate and its key as PEM (-----BEGIN CERTIFICATE-----,"
        f" -----BEGIN PRIVATE KEY-----); {error.reason or error}"
    )
