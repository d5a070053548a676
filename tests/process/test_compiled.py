"""The modules that a wheel has compiled do what the same files do as they are.

They are built here, without the optimiser, and the tests of the layers that hold most of them run
once more with them in place of the checkout's: the shared-memory road of a client, a batcher and a
worker, and the fast HTTP road, in one process and with a whole pool.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from batchpool.core.compiled import COMPILED

ROOT = Path(__file__).resolve().parents[2]
HOOK = ("tool", "hatch", "build", "targets", "wheel", "hooks", "mypyc")
AGAIN = [
    "tests/unit/client",
    "tests/unit/batcher/test_lane.py",
    "tests/unit/batcher/test_worker_proxy.py",
    "tests/unit/batcher/test_completion.py",
    "tests/unit/batcher/test_two_models.py",
    "tests/unit/worker/test_worker.py",
    "tests/unit/frontend/fast/test_protocol_states.py",
    "tests/process/test_http.py::test_requests_of_many_shapes_over_both_roads_at_once",
    "tests/process/test_http.py::test_the_msgpack_form_and_a_local_client_give_the_same",
    "tests/process/test_http.py::test_a_dead_worker_costs_http_callers_only_time",
]
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        COMPILED or shutil.which("cc") is None, reason="compiled already, or no C compiler"
    ),
]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that a compiled wheel is installed to."""
    source = tmp_path_factory.mktemp("source")
    shutil.copytree(ROOT / "batchpool", source / "batchpool")
    for name in ("README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    project = (ROOT / "pyproject.toml").read_text()
    quick, count = re.subn(r'opt_level = "\d"', 'opt_level = "0"', project)
    assert count == 1
    (source / "pyproject.toml").write_text(quick)
    built = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(source / "dist")],
        cwd=source,
        # Looking for what to warn of in the generated code takes longer than compiling it.
        env={**os.environ, "HATCH_BUILD_HOOK_ENABLE_MYPYC": "1", "CFLAGS": "-w"},
        check=False,
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    (wheel,) = (source / "dist").iterdir()
    assert f"cp{sys.version_info.major}{sys.version_info.minor}" in wheel.name
    site = source / "site"
    zipfile.ZipFile(wheel).extractall(site)
    return site


def environment(site: Path) -> dict[str, str]:
    """In which `import batchpool` finds the site, in every process that is started in it."""
    path = os.pathsep.join([str(site), str(ROOT)])
    others = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    return {**others, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}


def test_every_module_of_the_list_is_compiled_and_no_other(site: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    for key in HOOK:
        project = project[key]
    listed = {path.removeprefix("/").removesuffix(".py") for path in project["include"]}
    found = {str(p.relative_to(site)).split(".")[0] for p in (site / "batchpool").rglob("*.so")}
    assert found == listed
    version = subprocess.run(
        [sys.executable, "-m", "batchpool", "--version"],
        env=environment(site),
        cwd=site,
        capture_output=True,
        text=True,
        check=True,
    )
    assert version.stdout.endswith(" (compiled)\n")


def test_the_tests_of_the_road_pass_with_compiled_modules(site: Path) -> None:
    flags = ["-q", "-rs", "-p", "no:cacheprovider", "-p", "no:xdist", "--rootdir", str(ROOT)]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *flags, "-o", f"pythonpath={site} {ROOT}", *AGAIN],
        env=environment(site),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-8000:] + run.stderr[-2000:]
    assert "the modules are compiled" in run.stdout, "they were those of the checkout"
