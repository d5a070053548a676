"""bench.peers from folders of wheels, without environments."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from bench.peers.envs import Envs
from bench.peers.roster import OURSELVES, PEERS
from bench.peers.server import environment
from bench.peers.sites import libraries, lighten, unpacked


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
        code = "import mosec, sysconfig; print(sysconfig.get_path('scripts'))"
        found = subprocess.run(
            [str(sites.python(mosec)), "-c", code],
            env=env, check=True, capture_output=True, text=True,
        )  # fmt: skip
        assert (Path(found.stdout.strip()) / "mosec").is_file(), "where Mosec looks for its binary"
        assert os.access(sites.wrk(), os.X_OK), "although it came without the permission"
    assert not sites.unpacked.exists()


def test_an_environment_finds_what_this_interpreter_has_without_being_told(tmp_path: Path) -> None:
    a_wheel(tmp_path / "mosec", "msgpack", "word = 'from a wheel'\n")
    with unpacked(tmp_path) as sites:
        python = str(sites.python(PEERS["mosec"]))
        code = "import msgpack, numpy; print(msgpack.word, numpy.__version__)"
        found = subprocess.run([python, "-I", "-c", code], check=True, capture_output=True)
    assert found.stdout.decode().split() == ["from", "a", "wheel", np.__version__]


def test_a_light_wheel_has_no_parts_for_other_pythons(tmp_path: Path) -> None:
    stubs = "pytriton/tritonserver/python_backend_stubs"
    kept = [
        f"{stubs}/3.12/triton_python_backend_stub",
        "nvidia_pytriton.libs/libtritonserver-717102f0.so",
        "pytriton/triton.py",
    ]
    dropped = [f"{stubs}/3.1/stub", f"{stubs}/3.13/stub", "x.libs/libpython3-419a3a08.13.so.1.0"]
    wheel = tmp_path / "x-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as heavy:
        for name in (*kept, *dropped):
            info = zipfile.ZipInfo(name)
            info.external_attr = 0o755 << 16
            heavy.writestr(info, name * 1000)
    before = wheel.stat().st_size
    lighten(wheel, "3.12")
    assert list(tmp_path.iterdir()) == [wheel]
    assert wheel.stat().st_size < before / 10
    with zipfile.ZipFile(wheel) as light:
        assert light.namelist() == kept
        for member in light.infolist():
            assert light.read(member).decode() == member.filename * 1000
            assert member.external_attr >> 16 == 0o755, "a program stays one"


@pytest.mark.parametrize(
    ("libdir", "folder"),
    [("/opt/py/lib", "/opt/py/lib"), ("/usr/lib", ""), ("/usr/lib/x86_64-linux-gnu", "")],
)
def test_the_libraries_of_the_system_do_not_come_before_those_of_torch(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, libdir: str, folder: str
) -> None:
    monkeypatch.setattr("sysconfig.get_config_var", {"LIBDIR": libdir}.get)
    monkeypatch.setenv("LD_LIBRARY_PATH", "/of/the/driver")
    env = environment(PEERS["pytriton"], Envs(tmp_path), {"folder": str(tmp_path)})
    assert env["LD_LIBRARY_PATH"].split(":") == [*filter(None, [folder]), "/of/the/driver"]


def test_libraries_of_a_program_without_the_c_library() -> None:
    names = [Path(path).name for path in libraries(sys.executable)]
    assert not [name for name in names if name.startswith(("libc.", "libm.", "ld-"))]
