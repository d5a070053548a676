"""A pool whose callers have keys: from the start, by a reload, and never in the log."""

from __future__ import annotations

from pathlib import Path

from batchpool.client.control import ask_reload
from tests.process.pool_under_test import Pool, serving, started, until
from tests.process.test_proxies import BODY, INFER, LOGGED, access_lines
from tests.process.web import ask

NIGHTLY, WEB = "key-of-the-night", "key-of-the-web"


def status(pool: Pool, key: str) -> int:
    return ask(pool, INFER, BODY, {"Authorization": f"Bearer {key}"}).status


def keys_told(pool: Pool) -> list[object]:
    """The keys' names in the access log."""
    return [line["key"] for line in access_lines(pool) if "key" in line]


def test_keys_are_asked_for_and_a_reload_takes_over_others(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"nightly:{NIGHTLY}\n")
    file.chmod(0o600)
    with serving("Affine", server={**LOGGED, "api_keys_file": str(file)}) as pool:
        assert ask(pool, INFER, BODY).refused == (401, "unauthorized")
        assert (status(pool, NIGHTLY), status(pool, WEB)) == (200, 401)
        assert ask(pool, "/v2/health/ready").status == 200
        assert ask(pool, "/metrics").status == 401
        file.write_text("nonsense\n")
        done, text = ask_reload(pool.socket, wait=True)
        assert not done
        assert "line 1 is not NAME:KEY" in text
        assert status(pool, NIGHTLY) == 200, "nothing was changed"
        file.write_text(f"nightly:{NIGHTLY}\nweb:{WEB}\n")
        done, text = ask_reload(pool.socket, wait=True)
        assert done, text
        until(lambda: status(pool, WEB) == 200, "the new keys")
        until(lambda: keys_told(pool)[2:], "a line of each request")
        assert keys_told(pool) == ["nightly", "nightly", "web"]
        assert NIGHTLY not in pool.log
        assert WEB not in pool.log


def test_a_pool_does_not_start_without_its_keys(tmp_path: Path) -> None:
    with started("Affine", server={"api_keys_file": str(tmp_path / "none")}) as pool:
        pool.expected_status = 2
        assert pool.wait_end() == 2
        assert "api_keys_file" in pool.last_line
        assert "cannot read it: No such file" in pool.last_line
