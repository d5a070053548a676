"""The calculator of `batchpool size`, beside numbers that were computed by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from batchpool.cli import main
from batchpool.core.errors import ConfigError
from batchpool.tasks.sizing import Demand, figures

# 64 rows in 16 ms are 4,000 rows/s; 0.7 of that are 2,800.
DEMAND = Demand(rate=1000, input_bytes=2048, output_bytes=1536, batch_ms=16, batch=64)


def numbers(demand: Demand) -> dict[str, float]:
    return {figure.name: figure.value for figure in figures(demand)}


def test_workers_boxes_and_cores() -> None:
    found = numbers(DEMAND)
    assert found["rows a worker runs"] == 4000
    assert found["workers needed"] == 1
    assert found["load of the workers given"] == 0.25
    assert found["boxes for the task processes"] == 1  # 0.23 of 0.7
    assert found["cores of all boxes"] == pytest.approx(0.47)
    more = numbers(replace(DEMAND, rate=9000, workers=2, boxes=3))
    assert more["workers needed"] == 4  # 3.2
    assert more["boxes for the task processes"] == 3  # 2.96
    assert more["boxes needed"] == 3
    assert more["load of the workers given"] == 0.375  # 9,000 of 24,000
    assert numbers(replace(DEMAND, rate=2900))["boxes needed"] == 2, "2,900 of 2,800 rows/s"


def test_what_is_kept_and_its_memory() -> None:
    found = numbers(DEMAND)
    assert found["open tasks"] == 1000
    assert found["results kept"] == 62_000  # 2 s and a minute
    # 1,000 x 4,960 + 62,000 x 4,320 bytes = 272,800,000
    assert found["memory of Redis"] == pytest.approx(272_800_000 / 2**20)
    # 1,000 x 4,448 + 62,000 x 3,936 = 248,480,000 bytes = 236.97 MiB
    assert found["tasks_max_mib at least"] == 237
    assert numbers(replace(DEMAND, copies=2))["memory of Redis"] == pytest.approx(
        545_600_000 / 2**20
    )


def test_results_that_nobody_reads_are_what_costs() -> None:
    found = numbers(replace(DEMAND, uncollected=0.5, wait_s=0))
    # Half of them stay 62 s, half an hour: 31,000 + 1,800,000.
    assert found["results kept"] == 1_831_000
    assert found["memory of Redis"] == pytest.approx(1_831_000 * 4320 / 2**20)


def test_servers_and_their_network() -> None:
    found = numbers(replace(DEMAND, rate=10_000))
    assert found["Redis servers (shards)"] == 3  # 1.3 s of CPU a second, 0.6 each: 2.2
    # 10,000 / 3 x 2 x 3,584 bytes
    assert found["network of each server"] == pytest.approx(23.893, abs=0.001)


def test_a_database_of_each_box() -> None:
    demand = replace(DEMAND, store="sqlite", boxes=2, input_bytes=5000, output_bytes=1000)
    found = numbers(demand)
    # (1,000 x (8,192 + 512) + 62,000 x (1,000 + 512)) / 2 = 51,224,000 bytes
    assert found["disk of a box"] == pytest.approx(51_224_000 / 2**20)
    assert found["tasks_max_mib at least"] == 49
    # 500 x 2 x (8,192 + 1,000) bytes
    assert found["writes to the disk of a box"] == pytest.approx(9.192)
    assert "memory of Redis" not in found


def test_the_memory_of_a_box() -> None:
    found = numbers(replace(DEMAND, frontends=4, workers=2))
    assert found["memory of a box's processes"] == 27 + 30 + 25 + 4 * 41 + 2 * 27
    assert found["rings of a box's front ends"] == 14  # 4,096 x 3,584 bytes
    long = replace(DEMAND, input_bytes=2**20, output_bytes=0)
    assert numbers(long)["rings of a box's front ends"] == 1024, "a lane has 1 GiB at most"


@pytest.mark.parametrize(
    "wrong", [{"rate": 0}, {"batch": -1}, {"wait_s": -1}, {"uncollected": 1.5}]
)
def test_a_number_that_is_out_of_range_is_named(wrong: dict[str, float]) -> None:
    (name,) = wrong
    with pytest.raises(ConfigError, match=f"{name} = .*expected"):
        replace(DEMAND, **wrong)  # type: ignore[arg-type]


WORDS = [
    "size", "--rate", "1000", "--input-bytes", "2048", "--output-bytes", "1536", "--batch-ms", "16",
    "--batch", "64",
]  # fmt: skip


def test_the_command_prints_each_number_with_its_formula(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(WORDS) == 0
    lines = capsys.readouterr().out.splitlines()
    (line,) = (line for line in lines if line.startswith("results kept"))
    assert line.split(maxsplit=2)[2] == "62,000  = 1000 x (1 x (2 + 60) s + 0 x 3600 s)"
    assert all("  = " in line for line in lines)


def test_the_documents_show_what_it_prints(capsys: pytest.CaptureFixture[str]) -> None:
    text = (Path(__file__).parents[3] / "docs" / "tasks.md").read_text()
    command, _, shown = text.partition("    $ batchpool ")[2].partition("\n")
    assert main(command.split()) == 0
    lines = capsys.readouterr().out.splitlines()
    wanted = [line.strip() for line in shown.partition("    ...")[0].splitlines()]
    assert len(wanted) > 3
    assert set(wanted) <= set(lines)


def test_too_few_boxes_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*WORDS, "--rate", "9000", "--boxes", "2"]) == 1
    assert "2 of 4 boxes" in capsys.readouterr().out


def test_the_command_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*WORDS, "--store", "sqlite", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["demand"]["rate"] == 1000
    (disk,) = (f for f in told["figures"] if f["name"] == "disk of a box")
    assert disk["unit"] == "MiB"
    assert disk["formula"].startswith("(1000 x (4096 + 512) + 62000 x (4096 + 512)) bytes")


def test_a_wrong_number_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*WORDS, "--uncollected", "2"]) == 2
    assert "uncollected = 2" in capsys.readouterr().err
