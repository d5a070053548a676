"""The bodies of the repository's requests, and the entries of its index."""

from __future__ import annotations

import pytest

from batchpool.core.errors import InvalidRequest, NotSupported
from batchpool.wire.repository import check_load, index_entry, reads_ready_only


@pytest.mark.parametrize(
    ("body", "ready"),
    [(b"", False), (b"{}", False), (b'{"ready":true}', True), (b'{"ready":false}', False)],
)
def test_an_index_may_be_of_the_ready_models_only(body: bytes, ready: bool) -> None:
    assert reads_ready_only(body) is ready


@pytest.mark.parametrize("body", [b"x", b"[]", b'{"ready":1}', b'{"redy":true}', b"\xff"])
def test_another_index_body_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest, match="the request's JSON: "):
        reads_ready_only(body)


@pytest.mark.parametrize("body", [b"", b"{}", b'{"parameters":{}}', b'{"parameters":null}'])
def test_a_load_needs_no_body(body: bytes) -> None:
    check_load(body)


@pytest.mark.parametrize("name", ["config", "file:1/model.py"])
def test_a_load_brings_no_configuration_and_no_files(name: str) -> None:
    with pytest.raises(NotSupported, match=f"parameter '{name}' .* edit the file"):
        check_load(b'{"parameters":{"%s":"x"}}' % name.encode())


def test_a_load_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="the request's JSON: "):
        check_load(b'{"parameters":[]}')


def test_an_entry_says_why_its_model_cannot_be_asked() -> None:
    assert index_entry("m", "1", "") == {
        "name": "m", "version": "1", "state": "READY", "reason": "",
    }  # fmt: skip
    assert index_entry("m", "1", "no worker serves it") == {
        "name": "m", "version": "1", "state": "UNAVAILABLE", "reason": "no worker serves it",
    }  # fmt: skip
