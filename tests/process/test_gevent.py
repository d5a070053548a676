"""bp.Client under gevent's monkey patching: calls end, deadlines are kept, other greenlets run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.process.pool_under_test import Pool
from tests.process.test_client_life import run_script

pytest.importorskip("gevent")

SCRIPT = """
import gevent, time
assert bp.Client(SOCKET).infer("affine", x=ONES)["y"].tolist() == [[3.0] * 4]
with bp.Client(SOCKET) as client:
    assert client.infer("affine", x=ONES)["y"].tolist() == [[3.0] * 4]
    start = time.monotonic()
    try:
        client.infer("slow", tag=[1], seconds=[1.0], timeout_s=0.2)
    except bp.DeadlineExceeded:
        assert time.monotonic() - start >= 0.2
    calls = [gevent.spawn(client.infer, "probe", tag=[i], seconds=[0.0]) for i in range(20)]
    gevent.joinall(calls, timeout=30, raise_error=True)
    assert [call.value["tag"].tolist() for call in calls] == [[i] for i in range(20)]
    assert client.submit("probe", tag=[7], seconds=[0.0]).result(60)["tag"].tolist() == [7]
print("done")
"""


def test_calls_end_in_a_patched_process(everyday: Pool, tmp_path: Path) -> None:
    patch = "from gevent import monkey; monkey.patch_all()\n"
    ended = run_script(tmp_path, SCRIPT, everyday.socket, first=patch)
    assert (ended.returncode, ended.stdout) == (0, "done\n"), ended.stderr
