"""Peers from folders of wheels, for a machine that reaches no index.

    FOLDER/PEER/*.whl    all that the peer needs beyond what the interpreter there has
    FOLDER/bin/wrk       the program, and in FOLDER/lib the libraries it was linked with

`collect` fills such a folder, for the Python of the other machine; there `Sites` installs each
peer's wheels into an environment of its own, which comes before what that interpreter has. Torch,
what it needs and numpy, unless a peer needs an older one, are that interpreter's.
"""

from __future__ import annotations

import re
import shutil
import site
import subprocess
import sys
import tempfile
import venv
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.peers.envs import Envs, commanded, requirements
from bench.peers.roster import INSTALLED, PEERS, Peer

_WITH_TORCH = frozenset(
    {"torch", "numpy", "filelock", "fsspec", "jinja2", "markupsafe", "mpmath", "networkx", "sympy"}
)
_GLIBC = (39, 35, 34, 31, 28, 27, 26, 24, 17, 12, 5)  # pip takes these by name, not by order
_PLATFORMS = (
    *(f"manylinux_2_{minor}_x86_64" for minor in _GLIBC),
    *(f"manylinux{year}_x86_64" for year in ("2014", "2010", "1")),
    "any",
)
_OF_A_PYTHON = re.compile(  # in PyTriton's wheel, a quarter of it
    r"/(?:python_backend_stubs/3|libpython3-\w+)\.(?P<minor>\d+)[./]"
)


@dataclass(frozen=True)
class Sites(Envs):
    """unpacked: a folder with an environment a peer, and bin and lib of wrk."""

    unpacked: Path = Path()

    def python(self, peer: Peer) -> Path:
        return python_of(self.unpacked / peer.env) if peer.env else super().python(peer)

    def missing(self, peer: Peer) -> str:
        if peer.env and not (self.unpacked / peer.env).is_dir():
            why = self.unpacked / f"{peer.env}.failed"
            return why.read_text().strip() if why.exists() else f"no wheels in {self.folder}"
        return self.lacks_program(peer)

    def wrk(self) -> str:
        carried = self.unpacked / "bin" / "wrk"
        return str(carried) if carried.exists() else super().wrk()

    def wrk_libraries(self) -> str:
        return str(self.unpacked / "lib")


@contextmanager
def unpacked(folder: Path) -> Iterator[Sites]:
    """Unpacks the environments; one that cannot be unpacked is a line of the table."""
    with tempfile.TemporaryDirectory(prefix="bp-sites-") as made:
        target = Path(made)
        for wheels in sorted(path for path in folder.iterdir() if any(path.glob("*.whl"))):
            try:
                _environment(target / wheels.name, sorted(wheels.glob("*.whl")))
            except (RuntimeError, OSError) as error:
                shutil.rmtree(target / wheels.name, ignore_errors=True)
                (target / f"{wheels.name}.failed").write_text(str(error))
        for name in ("bin", "lib"):
            if (folder / name).is_dir():
                shutil.copytree(folder / name, target / name)
        if (wrk := target / "bin" / "wrk").exists():
            wrk.chmod(0o755)  # a copy to another machine may lose it
        yield Sites(folder, target)


def python_of(environment: Path) -> Path:
    return environment / "bin" / "python"


def _environment(folder: Path, wheels: Sequence[Path]) -> None:
    """Without pip, whose wheel that machine may lack. No folder on PYTHONPATH would do: Triton's
    Python processes find their interpreter by PATH and look at no other variable."""
    venv.create(folder, symlinks=True)
    pip = [sys.executable, "-m", "pip", "--python", str(python_of(folder)), "install", "-q"]
    pip += ["--no-index", "--no-deps", "--no-cache-dir", "--no-compile", "--ignore-installed"]
    commanded(*pip, *(str(wheel) for wheel in wheels))
    (own,) = folder.glob("lib/python*/site-packages")
    lines = [f"import site; site.addsitedir({path!r})" for path in site.getsitepackages()]
    (own / "of_the_interpreter.pth").write_text("\n".join(lines) + "\n")


# -- filling the folder -----------------------------------------------------------------------


def carried(peer: Peer) -> list[str]:
    """Its pinned packages but for what comes with torch. Triton's Python processes read the arrays
    of numpy 1 only and find no values in those of numpy 2."""
    lines = requirements(peer.env).read_text().splitlines()
    named = {line.partition("==")[0].lower(): line for line in lines}
    return [
        line
        for name, line in named.items()
        if name not in _WITH_TORCH or line.startswith("numpy==1.")
    ]


def collect(names: Sequence[str], folder: Path, python: str) -> None:
    """Wheels for a Python as "3.12" on x86-64, and wrk. RuntimeError: one is not to be had."""
    platforms = [word for name in _PLATFORMS for word in ("--platform", name)]
    for name in names or INSTALLED:
        peer = PEERS[name]
        pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:"]
        pip += ["--python-version", python, "--implementation", "cp", *platforms]
        commanded(*pip, "-d", str(folder / peer.env), *carried(peer))
        for wheel in (folder / peer.env).glob("*.whl"):
            lighten(wheel, python)
        print(f"  {name}: {_mib(folder / peer.env):.1f} MiB", flush=True)
    wrk = Envs().wrk()
    for kind, paths in (("bin", [wrk]), ("lib", libraries(wrk))):
        (folder / kind).mkdir(parents=True, exist_ok=True)
        for path in paths:
            shutil.copy(path, folder / kind)
        print(f"  {kind}: {_mib(folder / kind):.1f} MiB", flush=True)


def lighten(wheel: Path, python: str) -> None:
    """Without what is for other Pythons, and packed as closely as pip can unpack."""
    light = wheel.with_suffix(".light")
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(light, "w") as new:
        for member in old.infolist():
            found = _OF_A_PYTHON.search(member.filename)
            if not found or found["minor"] == python.partition(".")[2]:
                content = old.read(member)
                member.compress_type = zipfile.ZIP_LZMA
                new.writestr(member, content)
    light.replace(wheel)


def libraries(program: str) -> list[str]:
    """The libraries a program is linked with, without those of the machine's C library."""
    told = subprocess.run(["ldd", program], check=True, capture_output=True, text=True).stdout
    of_libc = re.compile(r"lib(c|m|pthread|dl|rt)\.so|ld-linux")
    return [path for path in re.findall(r"=> (/\S+)", told) if not of_libc.search(path)]


def _mib(folder: Path) -> float:
    return sum(path.stat().st_size for path in folder.iterdir()) / 2**20
