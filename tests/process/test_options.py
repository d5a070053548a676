"""One class stands twice in a pool by its options, which a reload may change."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.process.pool_under_test import ROOT, Pool, command, model_table, serving, toml, until

SCALE = "tests.process.option_models:Scale"


def model(name: str, **options: Any) -> dict[str, Any]:
    return {"import": SCALE, "name": name, "options": options}


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    flags = ("--model", f"treble={SCALE}", "--option", "by=3", "--option", "width=3")
    with serving(model("double", by=2), flags=flags) as pool:
        yield pool


def answer(pool: Pool, name: str, width: int) -> tuple[list[float], str]:
    with pool.client() as client:
        found = client.infer(name, x=np.ones((1, width), np.float32))
    return found["y"][0].tolist(), found["name"][0].decode()


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*words), cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )


def test_each_has_its_options_its_tensors_and_its_name(pool: Pool) -> None:
    assert answer(pool, "double", 2) == ([2, 2], "double")
    assert answer(pool, "treble", 3) == ([3, 3, 3], "treble")
    options = {name: found["options"] for name, found in pool.status()["models"].items()}
    assert options == {"double": {"by": 2.0}, "treble": {"by": 3.0, "width": 3}}
    shown = run("status", "--socket", pool.socket)
    assert "by = 3.0, width = 3" in shown.stdout


@pytest.mark.long
def test_a_reload_brings_other_options_and_other_tensors(pool: Pool) -> None:
    """The options of the command line stay, since the pool was started with them."""
    settings = {"port": pool.port, "socket": pool.socket, "frontends": 1}
    for options, width in (({"by": 5}, 2), ({"by": 7, "width": 4}, 4)):
        text = toml(settings, [model_table(model("double", **options))])
        (pool.folder / "pool.toml").write_text(text)
        assert run("reload", str(pool.folder / "pool.toml")).returncode == 0
        until(lambda: pool.status()["models"]["double"]["options"] == options)  # noqa: B023
        assert answer(pool, "double", width) == ([options["by"]] * width, "double")
    assert answer(pool, "treble", 3) == ([3, 3, 3], "treble")


def test_a_reload_with_wrong_options_changes_nothing(pool: Pool) -> None:
    before = pool.status()["models"]["double"]["options"]
    settings = {"port": pool.port, "socket": pool.socket, "frontends": 1}
    text = toml(settings, [model_table(model("double", bye=5))])
    (pool.folder / "pool.toml").write_text(text)
    failed = run("reload", str(pool.folder / "pool.toml"))
    assert failed.returncode == 1
    assert 'unknown option bye = 5; did you mean "by"?; Scale has the options' in failed.stderr
    assert pool.status()["models"]["double"]["options"] == before
    assert answer(pool, "treble", 3) == ([3, 3, 3], "treble")


def test_what_the_configuration_alone_tells_is_refused_before_a_model_is_imported(
    pool: Pool,
) -> None:
    """A module that nobody has would be told of first if any were looked for."""
    settings = {"port": pool.port, "socket": pool.socket, "frontends": 1}
    nowhere = {"import": "nowhere:Model", "name": "a"}
    onnx = {"import": "batchpool.models.onnx:Onnx", "name": "b", "options": {"pth": "b.onnx"}}
    wrong = {
        'unknown option pth = "b.onnx"; did you mean "path"?': (settings, [nowhere, onnx]),
        "max_clients changed: restart the service": (settings | {"max_clients": 3}, [nowhere]),
    }
    for told, (server, models) in wrong.items():
        (pool.folder / "pool.toml").write_text(toml(server, models))
        failed = run("reload", str(pool.folder / "pool.toml"))
        assert failed.returncode == 1
        assert told in failed.stderr
        assert "nowhere" not in failed.stderr
    assert answer(pool, "double", 2)[1] == "double"


@pytest.mark.long
def test_check_shows_them() -> None:
    shown = run("check", "--model", f"m={SCALE}", "--option", "by=2", "--port", "1", "--load")
    assert shown.returncode == 0, shown.stderr
    assert "  options        by = 2.0\n" in shown.stdout
    missing = run("check", "--model", SCALE)
    assert missing.returncode == 2  # as of any other mistake in the configuration
    assert (
        f"model {SCALE}: option by is missing; Scale has the options by: float,"
        " width: int = 2" in missing.stderr
    )
    flags = ("--model", f"a={SCALE}", "--option", "by=2", "--model", f"b={SCALE}")
    word = run("check", *flags, "--option", "by=two")
    assert word.returncode == 2
    assert f'model b ({SCALE}): option by = "two": expected `float`; Scale has' in word.stderr
    drawn = run("layout", SCALE, "--option", "by=2", "--option", "width=5", "--slots", "3")
    assert "f4[3,5]" in drawn.stdout.replace(", ", ","), drawn.stdout
