"""The file of callers' keys: its lines, its mode, and the look-up of a key."""

from __future__ import annotations

import hashlib
import logging
import os
from pathlib import Path

import pytest

from batchpool.core.config.server_table import ServerConfig
from batchpool.core.errors import ConfigError
from batchpool.credentials.api_keys import read_api_keys
from batchpool.supervisor.plan.credentials import check_credentials

SECRET = "s3cr3t-Key_of.night~ly+/="


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keys"


def write(file: Path, text: str, mode: int = 0o600) -> str:
    file.write_text(text)
    file.chmod(mode)
    return str(file)


def test_keys_are_found_by_themselves_and_by_their_hash(file: Path) -> None:
    digest = hashlib.sha256(b"of-the-web").hexdigest()
    keys = read_api_keys(
        write(file, f"# keys\n\n  nightly:{SECRET}  \nweb:sha256:{digest.upper()}\nweb:next\n")
    )
    assert keys.name_of(SECRET.encode()) == "nightly"
    assert keys.name_of(b"of-the-web") == keys.name_of(b"next") == "web"
    for other in (b"", b"of-the-we", digest.encode(), b"nightly", SECRET.lower().encode(), b"\xff"):
        assert keys.name_of(other) == ""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "it has no key"),
        ("# nothing\n", "it has no key"),
        (f"a:b\n{SECRET}\n", "line 2 is not NAME:KEY"),
        (f" b c:{SECRET}", "line 1 is not NAME:KEY"),
        ("a:", "line 1, of a: expected a key"),
        (f"a:{SECRET} more", "line 1, of a: expected a key"),
        ("a:sha256:12", "line 1, of a: expected a key"),
        (f"a:{SECRET}\nb:{SECRET}", "line 2, of b: a has the same key"),
        ("a:kéy", "not ASCII"),
        ("a" * (2 << 20), "more than 1048576 bytes"),
    ],
)
def test_a_file_that_cannot_be_read_is_told_without_its_keys(
    file: Path, text: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        read_api_keys(write(file, text))
    assert str(file) in str(caught.value)
    assert SECRET not in str(caught.value)


def test_others_may_not_write_it_and_should_not_read_it(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    for mode in (0o600, 0o640):
        read_api_keys(write(file, "a:b", mode))
    assert caplog.records == []
    read_api_keys(write(file, "a:b", 0o644), warn=False)
    assert caplog.records == []
    read_api_keys(write(file, "a:b", 0o644))
    assert "its mode 0644 lets every user read it; run `chmod 600" in caplog.text
    for mode in (0o620, 0o602):
        with pytest.raises(ConfigError, match="lets others write it; run `chmod 600"):
            read_api_keys(write(file, "a:b", mode))


def test_what_is_no_file_is_not_waited_for(file: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read it: No such file"):
        read_api_keys(str(file))
    os.mkfifo(file)
    with pytest.raises(ConfigError, match="no regular file"):
        read_api_keys(str(file))
    with pytest.raises(ConfigError, match="no regular file"):
        read_api_keys(str(file.parent))


def test_the_file_is_checked_before_the_pool_starts(file: Path) -> None:
    check_credentials(ServerConfig())
    check_credentials(ServerConfig(api_keys_file=write(file, "a:b")))
    with pytest.raises(ConfigError, match="api_keys_file"):
        check_credentials(ServerConfig(api_keys_file=f"{file}.none"))
