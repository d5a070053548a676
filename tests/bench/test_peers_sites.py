"""bench.peers from folders of wheels, without environments."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

from bench.peers.roster import OURSELVES, PEERS
from bench.peers.server import environment
from bench.peers.sites import libraries, unpacked


def a_wheel(folder: Path, name: str, text: str) -> None:
    facts = f"{name}-1.0.dist-info"
    files = {
        f"{name}.py": text,
        f"{name}-1.0.data/scripts/{name}": "#!python\n",
        f"{facts}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{facts}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},,\n" for path in (*files, f"{facts}/RECORD"))
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
        for path, content in {**files, f"{facts}/RECORD": record}.items():
            wheel.writestr(path, content)


def test_peers_from_wheels(tmp_path: Path) -> None:
    a_wheel(tmp_path / "mosec", "mosec", "word = 'from a wheel'\n")
    (tmp_path / "litserve").mkdir()
    (tmp_path / "litserve" / "no_wheel-1.0-py3-none-any.whl").write_text("")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "wrk").write_text("#!/bin/sh\n")
    mosec = PEERS["mosec"]
    with unpacked(tmp_path) as sites:
        assert sites.missing(mosec) == ""
        assert sites.missing(PEERS[OURSELVES]) == ""
        assert sites.missing(PEERS["litserve"]).startswith("python")
        assert sites.missing(PEERS["ray"]) == f"no wheels in {tmp_path}"
        assert sites.version(mosec) == "1.0"
        env = environment(mosec, sites, {"folder": str(tmp_path)})
        code = "import mosec, sysconfig; print(sysconfig.get_path('scripts', 'posix_user'))"
        found = subprocess.run(
            [str(sites.python(mosec)), "-c", code],
            env=env, check=True, capture_output=True, text=True,
        )  # fmt: skip
        assert (Path(found.stdout.strip()) / "mosec").is_file(), "where Mosec looks for its binary"
        assert os.access(sites.wrk(), os.X_OK), "although it came without the permission"
    assert not sites.unpacked.exists()


def test_libraries_of_a_program_without_the_c_library() -> None:
    names = [Path(path).name for path in libraries(sys.executable)]
    assert not [name for name in names if name.startswith(("libc.", "libm.", "ld-"))]
