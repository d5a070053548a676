"""The peers' virtual environments: made with pinned versions, looked for, complained about."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.peers.roster import INSTALLED, PEERS, Peer

DEFAULT = Path("~/.cache/batchpool-peers").expanduser()
_REQUIREMENTS = Path(__file__).with_name("requirements")
_READY = "installed"  # a file of an environment, a copy of the requirements it was made with


@dataclass(frozen=True)
class Envs:
    folder: Path = DEFAULT

    def python(self, peer: Peer) -> Path:
        if not peer.env:
            return Path(sys.executable)
        return self.folder / peer.env / "bin" / "python"

    def missing(self, peer: Peer) -> str:
        """Why it cannot run here; "" if it can."""
        for program in peer.needs:
            if shutil.which(program) is None:
                return f"needs {program}, which is not on PATH"
        if not peer.env:
            return ""
        made_with = self.folder / peer.env / _READY
        if not made_with.exists():
            why = self.folder / f"{peer.env}.failed"
            said = f": {why.read_text().strip()}" if why.exists() else ""
            return f"not installed (python -m bench.peers setup {peer.name}){said}"
        if made_with.read_text() != requirements(peer.env).read_text():
            return f"installed with other versions (python -m bench.peers setup {peer.name})"
        return ""

    def version(self, peer: Peer) -> str:
        code = f"from importlib import metadata; print(metadata.version({peer.package!r}))"
        told = [str(self.python(peer)), "-c", code]
        done = subprocess.run(told, check=False, capture_output=True, text=True)
        return done.stdout.strip() or "-"

    def library_folder(self) -> str:
        return str(sysconfig.get_config_var("LIBDIR") or "")

    def wrk(self) -> str:
        """SystemExit: there is none, and so no table."""
        found = shutil.which("wrk") or shutil.which(self.folder / "wrk" / "usr" / "bin" / "wrk")
        if found is None:
            raise SystemExit("wrk is missing: apt-get install wrk, or python -m bench.peers setup")
        return str(found)

    # -- making them ----------------------------------------------------------------------

    def setup(self, names: Sequence[str], wheels: str, torch_here: bool) -> bool:
        """Whether all are there. What fails is remembered for the table."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._unpack_wrk()
        failed = []
        for name in names or INSTALLED:
            peer = PEERS[name]
            if not self.missing(peer):
                print(f"  {name}: there already")
                continue
            why = self._make(peer, wheels, torch_here)
            (self.folder / f"{peer.env}.failed").unlink(missing_ok=True)
            if why:
                (self.folder / f"{peer.env}.failed").write_text(why + "\n")
                failed.append(name)
            print(f"  {name}: {why or 'installed'}", flush=True)
        return not failed

    def _make(self, peer: Peer, wheels: str, torch_here: bool) -> str:
        """Why it could not be made; "" if it was."""
        folder = self.folder / peer.env
        pinned = requirements(peer.env)
        shutil.rmtree(folder, ignore_errors=True)
        try:
            _run(sys.executable, "-m", "venv", str(folder))
            with tempfile.NamedTemporaryFile("w", suffix=".txt") as wanted:
                wanted.write("".join(without_torch(pinned) if torch_here else lines_of(pinned)))
                wanted.flush()
                where = ["--no-index", "--find-links", wheels, "--no-deps"] if wheels else []
                pip = [str(self.python(peer)), "-m", "pip", "install", "-q", *where]
                _run(*pip, "-r", wanted.name)
        except RuntimeError as error:
            return str(error)
        if torch_here:  # ours, looked at after its own packages
            site = folder / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}"
            path = sysconfig.get_path("purelib")
            (site / "site-packages" / "torch_here.pth").write_text(path + "\n")
        (folder / _READY).write_text(pinned.read_text())
        return ""

    def _unpack_wrk(self) -> None:
        """Debian's package, unpacked here, where wrk is on no PATH; needs no rights."""
        target = self.folder / "wrk"
        if shutil.which("wrk") or target.exists():
            return
        with tempfile.TemporaryDirectory() as folder:
            try:
                _run("apt-get", "download", "wrk", cwd=folder)
                (package,) = Path(folder).glob("wrk_*.deb")
                _run("dpkg-deb", "-x", str(package), str(target))
                print("  wrk: unpacked")
            except (RuntimeError, OSError, ValueError) as error:
                print(f"  wrk: {error}")


def requirements(env: str) -> Path:
    return _REQUIREMENTS / f"{env}.txt"


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines(keepends=True)


def without_torch(path: Path) -> list[str]:
    return [line for line in lines_of(path) if not line.startswith("torch==")]


def download(names: Sequence[str], folder: str) -> None:
    """Wheels of everything but torch, for a machine that reaches no index."""
    for name in names or INSTALLED:
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as wanted:
            wanted.write("".join(without_torch(requirements(PEERS[name].env))))
            wanted.flush()
            pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder]
            _run(*pip, "-r", wanted.name)
        print(f"  {name}: in {folder}", flush=True)


def _run(*command: str, cwd: str | None = None) -> None:
    done = subprocess.run(command, check=False, cwd=cwd, capture_output=True, text=True)
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise RuntimeError(
            f"{Path(command[0]).name} ended with {done.returncode}: {(said or ['-'])[-1]}"
        )
