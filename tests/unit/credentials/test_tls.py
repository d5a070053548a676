"""The server's certificate: files that work, and the fault of those that do not."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from batchpool.core.config.server_table import ServerConfig
from batchpool.core.errors import ConfigError
from batchpool.credentials.tls import server_context
from batchpool.supervisor.plan.credentials import check_credentials
from tests.certificates import certificate


def test_a_certificate_with_its_key_in_two_files_or_in_one(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    context = server_context(cert, key)
    assert context.minimum_version >= ssl.TLSVersion.TLSv1_2
    both = tmp_path / "both"
    both.write_text(Path(cert).read_text() + Path(key).read_text())
    both.chmod(0o600)
    server_context(str(both), "")
    check_credentials(ServerConfig(ssl_certfile=cert, ssl_keyfile=key))


def test_what_does_not_work_is_told(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    other, _ = certificate(tmp_path, "other")
    _, locked = certificate(tmp_path, "locked", password="secret")
    text = tmp_path / "text"
    text.write_text("no PEM")
    text.chmod(0o600)
    faults = {
        (str(tmp_path / "none"), key): "ssl_certfile = .*: cannot read it: No such file",
        (cert, str(tmp_path / "none")): "ssl_keyfile = .*: cannot read it: No such file",
        (cert, str(tmp_path)): "ssl_keyfile = .*: it is no regular file",
        (other, key): "the key belongs to another certificate",
        (cert, locked): "the key has a password, .*`openssl pkey",
        (str(text), key): "expected a certificate and its key as PEM",
        (cert, ""): "expected a certificate and its key as PEM",
        ("", key): "expected ssl_certfile beside it",
    }
    for (certfile, keyfile), message in faults.items():
        with pytest.raises(ConfigError, match=message):
            check_credentials(ServerConfig(ssl_certfile=certfile, ssl_keyfile=keyfile))
