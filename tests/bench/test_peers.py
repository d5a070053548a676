"""bench.peers: what it reads, what it computes, and that a server ends with all it started."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from bench.load.heads import DIFFERING
from bench.peers import settings
from bench.peers.envs import Envs, requirements
from bench.peers.family import Process, cpu_s, descendants, parse
from bench.peers.forms import JSON, OURS, RAW, ROW_BYTES, TRITON, WIDTH, Form
from bench.peers.load import Cell, compare, questions, serves, told_by
from bench.peers.quiet import Look, Use, between, busy_s
from bench.peers.roster import INSTALLED, MODELS, OURSELVES, PEERS, SERVERS, in_flight
from bench.peers.rounds import Found, Wanted, loaded, schedule
from bench.peers.server import GaveUp, await_answer, is_free, running
from bench.peers.settings import Setting, chosen, machine_name
from bench.peers.sites import carried
from bench.peers.sweep import best, values_of
from bench.peers.table import bare_rates, markdown, ratios, shares, shown

ROOT = Path(__file__).resolve().parents[2]


def cell(peer: str, round_: int, rate: float, connections: int = 64, failed: int = 0) -> Cell:
    return Cell(peer, "mlp", connections, round_, rate, 2000.0, 9000.0, 99, failed, 40.0, 0.25)


# -- reading ------------------------------------------------------------------------------


def test_a_process_by_its_stat_line() -> None:
    ticks = os.sysconf("SC_CLK_TCK")
    fields = " ".join(["0"] * 9)
    line = f"42 (a (b) c) S 7 {fields} {3 * ticks} {ticks} 5 5\n"
    assert parse(line.encode()) == Process(7, "S", 4.0)


def test_cpu_time_between_two_looks() -> None:
    before = {1: Process(0, "S", 5.0), 2: Process(1, "S", 1.0)}
    after = {1: Process(0, "S", 5.5), 3: Process(1, "R", 0.25)}
    assert cpu_s(before, after) == 0.75, "2 ended and counts nothing, 3 is new"


def test_cores_that_others_used() -> None:
    ticks = os.sysconf("SC_CLK_TCK")
    line = f"cpu  {ticks} 0 {2 * ticks} 99 99 0 0 {ticks} 0 0\n"
    assert busy_s(line) == 4.0, "user, system and steal; neither idle nor iowait"
    before = Look(10.0, 4.0, 1.0, {1: Process(0, "S", 5.0)})
    after = Look(12.0, 7.5, 1.5, {1: Process(0, "S", 7.0)})
    assert between(before, after) == Use(2.0, 0.5), "3.5 s busy, 2 the server's and 0.5 our own"


def test_descendants() -> None:
    found = {pid: Process(parent, "S", 0) for pid, parent in {2: 1, 3: 2, 4: 3, 5: 1}.items()}
    assert set(descendants(2, found)) == {3, 4}
    assert set(descendants(1, found)) == {2, 3, 4, 5}
    assert descendants(4, found) == {}


def test_figures_of_wrk() -> None:
    assert told_by('Running 4s test\nJSON {"right":5,"wrong":0}\n') == {"right": 5, "wrong": 0}
    with pytest.raises(ValueError, match="unable to connect"):
        told_by("unable to connect to 127.0.0.1:9")


@pytest.mark.parametrize("form", [RAW, OURS, TRITON, JSON], ids=["raw", "ours", "triton", "json"])
def test_forms_carry_a_row(form: Form) -> None:
    row = np.arange(WIDTH, dtype=np.float32) / 7
    body = form.encode(row)
    if form is JSON:
        assert (form.decode(body.removeprefix(b'{"x": ').removesuffix(b"}")) == row).all()
        short = b"[[1.0, 2.0]]"
    else:
        assert (form.decode(b"a head" + body[-ROW_BYTES:]) == row).all()
        head_length = int(form.headers.get("Inference-Header-Content-Length", 0))
        assert len(body) == head_length + ROW_BYTES
        short = body[:100]
    with pytest.raises(ValueError):
        form.decode(short)


# -- figures ------------------------------------------------------------------------------


def test_median_least_and_most() -> None:
    assert shown([1234.0, 4321.0, 2000.0]) == "2,000 (1,234 .. 4,321)"
    assert shown([0.126], 2) == "0.13"
    assert shown([]) == "-"


def test_ratios_are_of_the_same_rounds() -> None:
    ours = [cell(OURSELVES, 0, 100), cell(OURSELVES, 1, 300), cell(OURSELVES, 2, 90)]
    theirs = [cell("mosec", 2, 45), cell("mosec", 1, 100), cell("mosec", 3, 1)]
    assert ratios(ours, theirs) == [2.0, 3.0]


def test_shares_are_of_the_best_batch_and_the_better_load() -> None:
    bare = [{"64": 10.0, "256": 30.0}, {"64": 50.0, "256": 20.0}]
    assert bare_rates(bare) == [30.0, 50.0]
    at_64 = [cell("mosec", 0, 15.0), cell("mosec", 1, 10.0), cell("mosec", 2, 1.0)]
    at_256 = [cell("mosec", 0, 12.0), cell("mosec", 1, 20.0)]
    assert shares(bare, at_64, at_256) == [0.5, 0.4], "a third round has no bare rate yet"


@pytest.fixture
def found() -> Found:
    wanted = Wanted(["batchpool", "mosec", "pytriton"], [], ["mlp"], "cpu", 2, 4, 0.0)
    machine = {"cpu": "A CPU", "cores": 2, "gpus": [], "python": "3.11", "command": "python -m x"}
    of = {
        name: {
            "title": PEERS[name].title,
            "version": "1.2",
            "settings": {"mlp": {**asdict(Setting()), "origin": "swept on cpu, 2 cores"}},
        }
        for name in ("batchpool", "mosec")
    }
    cells = [
        cell(name, round_, rate * (1 + round_), connections, failed)
        for name, rate, failed in (("mosec", 500, 2), ("batchpool", 1000, 0))
        for round_ in (0, 1)
        for connections in (1, 64, 256)
    ]
    made = Found(machine, asdict(wanted), of, cells, {"mlp": [{"64": 2000.0}, {"64": 4000.0}]})
    made.note("pytriton", "mlp", 0, "skipped: not installed")
    return made


def test_a_table(found: Found) -> None:
    lines = markdown(found).splitlines()
    rows = [line.split(" | ") for line in lines if line.startswith("| ")]
    assert [row[0] for row in rows[1:]] == ["| batchpool", "| Mosec (12 failed)"]
    ours, theirs = rows[1:]
    assert ours[1:5] == ["1,500 (1,000 .. 2,000)", "1,500 (1,000 .. 2,000)", "1", "1"]
    assert theirs[3:5] == ["2.00 (2.00 .. 2.00)"] * 2
    assert (ours[8], theirs[8]) == ("50 (50 .. 50)", "25 (25 .. 25)")
    assert "Other processes used 0.25 cores meanwhile, 0.25 at most." in lines
    assert "The bare MLP 512-2048-2048-512, one process: 3,000 (2,000 .. 4,000) rows/s." in lines
    assert "p99 ms at 64 / 256" in rows[0]
    assert ours[6] == "9.0 / 9.0"
    assert lines[-1].startswith("- PyTriton, MLP")
    assert lines[-1].endswith("round 1: skipped: not installed")


def test_rates_of_equal_heads_stand_beside_those_of_differing_ones(found: Found) -> None:
    equal = found.cells
    assert "one thread a worker; equal heads | 64 connections, requests/s" in markdown(found)
    found.cells = [*equal, *(replace(c, heads=DIFFERING, rate=c.rate / 10) for c in equal)]
    names, ours, theirs = (
        line.split(" | ") for line in markdown(found).splitlines() if line.startswith("| ")
    )
    assert names[0].endswith("; differing heads")
    at = names.index("64 connections, equal heads, requests/s")
    assert (ours[1], ours[at]) == ("150 (100 .. 200)", "1,500 (1,000 .. 2,000)")
    assert (theirs[1], theirs[at]) == ("75 (50 .. 100)", "750 (500 .. 1,000)")
    assert names[at + 2] == "batchpool / it, 64, equal heads"


def test_a_table_of_other_loads_and_of_what_was_offered(found: Found) -> None:
    found.cells = [
        replace(cell, connections=4096) for cell in found.cells if cell.connections == 64
    ]
    seen = {"p50_ms": 2.0, "p99_ms": 4.5, "behind_p99_ms": 0.5, "refused": 3, "failed": 0}
    told = {"peer": "mosec", "model": "mlp", "offered_per_s": 10_000.0, **seen}
    found.offered = [told, {**told, "p99_ms": 5.5}]
    lines = markdown(found).splitlines()
    assert any("4,096 connections, requests/s | batchpool / it, 4,096 | 1 con" in x for x in lines)
    assert (
        "Mosec, 10,000 requests/s offered: p50 2.00 (2.00 .. 2.00) ms, p99 5.00 (4.50 .. 5.50) ms"
        " (6 not answered; sent late by p99 0.50 (0.50 .. 0.50) ms)."
    ) in lines
    found.cells = []
    assert "MLP 512-2048-2048-512, one thread a worker: nothing was measured." in markdown(found)


def test_a_run_is_kept_whole(found: Found, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    found.save(str(path))
    kept = loaded(str(path))
    assert kept.cells == found.cells
    assert markdown(kept) == markdown(found)
    assert found.failures("pytriton", "mlp") == 1


def test_turns_of_a_round() -> None:
    wanted = Wanted(["batchpool", "uvicorn"], ["ray"], ["affine", "mlp"], "cpu", 2, 4, 0.0)
    everybody = ["batchpool", "uvicorn", "ray"]
    with_ray = [("affine", "batchpool"), ("affine", "uvicorn"), ("affine", "ray")]
    with_ray += [("mlp", "batchpool"), ("mlp", "ray")]
    assert list(schedule(wanted, everybody, 0)) == with_ray
    assert list(schedule(wanted, everybody, 1)) == [one for one in with_ray if one[1] != "ray"]


# -- settings -----------------------------------------------------------------------------


def test_settings_come_back_as_they_were_saved(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    assert settings.load(path) == {}
    kept = {"cpu, 2 cores": {"ray": {"mlp": Setting(2, 1, 256, 0.5, "throughput")}}}
    settings.save(kept, path)
    assert settings.load(path) == kept
    path.write_text('{"m": {"ray": {"mlp": {"worker": 1}}}}')
    with pytest.raises(ValueError, match="ray, mlp"):
        settings.load(path)
    path.write_text('{"m": {"ray": {"mlp": {"workers": 0}}}}')
    with pytest.raises(ValueError, match="not a setting"):
        settings.load(path)


def test_the_committed_settings_are_of_peers_and_models_there_are() -> None:
    for machine, peers in settings.load().items():
        assert re.fullmatch(r"(cpu|cuda), \d+ cores", machine)
        for name, of_models in peers.items():
            assert PEERS[name].grid
            assert set(of_models) <= set(MODELS)


def test_a_setting_of_another_machine_is_not_used() -> None:
    kept = {machine_name("cpu", 2): {"mosec": {"mlp": Setting(2)}}}
    assert chosen(kept, "mosec", "mlp", "cpu", 2, Setting()) == (
        Setting(2),
        "swept on cpu, 2 cores",
    )
    for device, cores in (("cpu", 16), ("cuda", 2)):
        assert chosen(kept, "mosec", "mlp", device, cores, Setting()) == (
            Setting(),
            "not swept here",
        )


def test_a_sweep_takes_the_highest_and_of_waits_the_shortest_that_is_alike() -> None:
    assert best("workers", {1: 90.0, 2: 100.0, 4: 99.0}) == 2
    assert best("wait_ms", {0: 90.0, 1: 98.0, 5: 100.0}) == 1
    with pytest.raises(ValueError, match="no value of apis works"):
        best("apis", {1: 0.0, 2: 0.0})


def test_a_sweep_starts_no_more_processes_than_cores() -> None:
    peer = replace(PEERS["mosec"], grid={"workers": (2, 4, 8), "wait_ms": (5, 10)})
    assert values_of(peer, "workers", 4) == (2, 4)
    assert values_of(peer, "workers", 1) == (2,)
    assert values_of(peer, "wait_ms", 1) == (5, 10)


def test_a_server_holds_what_all_connections_send() -> None:
    assert [in_flight(n) for n in (1, 256, 2048, 2049, 4096)] == [4096, 4096, 4096, 8192, 8192]


# -- environments -------------------------------------------------------------------------


@pytest.mark.parametrize("name", INSTALLED)
def test_a_peer_has_a_script_and_pinned_packages(name: str) -> None:
    peer = PEERS[name]
    assert (SERVERS / peer.script).is_file()
    lines = requirements(peer.env).read_text().splitlines()
    assert [line for line in lines if not re.fullmatch(r"[\w.-]+==[\w.+!-]+", line)] == []
    assert "torch==2.13.0+cpu" in lines, "never a CUDA build, which is gigabytes"
    assert peer.package.lower() in {line.partition("==")[0].lower() for line in lines}
    numpy = {"numpy==1.26.4"} if name == "pytriton" else set()
    assert {line for line in carried(peer) if re.match("(torch|numpy)==", line)} == numpy
    assert set(carried(peer)) < set(lines)


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    envs = Envs(tmp_path)
    assert envs.missing(PEERS[OURSELVES]) == ""
    assert "python -m bench.peers setup mosec" in envs.missing(PEERS["mosec"])
    (tmp_path / "mosec.failed").write_text("no matching distribution\n")
    assert envs.missing(PEERS["mosec"]).endswith(": no matching distribution")
    (tmp_path / "mosec").mkdir()
    (tmp_path / "mosec" / "installed").write_text("mosec==0.1\n")
    assert envs.missing(PEERS["mosec"]).startswith("installed with other versions")
    (tmp_path / "mosec" / "installed").write_text(requirements("mosec").read_text())
    assert envs.missing(PEERS["mosec"]) == ""
    needs = replace(PEERS["mosec"], needs=("a-program-that-is-not-there",))
    assert "a-program-that-is-not-there" in envs.missing(needs)


# -- servers ------------------------------------------------------------------------------


def test_a_server_is_compared_and_leaves_its_port() -> None:
    peer, asked = PEERS["uvicorn"], questions("echo", "cpu")
    with running(peer, "affine", "cpu", peer.start, Envs()) as server:
        await_answer(server, lambda: serves(server, asked))
        assert not is_free(server.port)
        assert compare(server, asked) == ROW_BYTES
        with pytest.raises(GaveUp, match="wrong answer"):
            compare(server, questions("affine", "cpu"))
    assert server.process.poll() is not None
    assert is_free(server.port)


def test_a_server_that_ends_is_given_up() -> None:
    peer = replace(PEERS["uvicorn"], script="no_such_server.py")
    with (
        pytest.raises(GaveUp, match=r"ended with 2 before it served: .*no_such_server"),
        running(peer, "affine", "cpu", peer.start, Envs()) as server,
    ):
        await_answer(server, lambda: False)


_ORPHANS = """
import os, subprocess, sys
from bench.peers import family
family.adopt_orphans()
spared = subprocess.Popen(["sleep", "600"])
forks = '''
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork():
    os._exit(0)
os.setsid()
os.fork()
print(flush=True)
signal.pause()
'''
gone = subprocess.Popen([sys.executable, "-c", forks], stdout=subprocess.PIPE)
gone.wait()
gone.stdout.readline()
gone.stdout.readline()
kept = frozenset({spared.pid})
print(len(family.ours(kept)), family.end_all(kept), len(family.ours(kept)), spared.poll())
spared.kill()
spared.wait()
"""


def test_orphans_in_other_groups_are_ended_too() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _ORPHANS], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["2", "True", "0", "None"]
