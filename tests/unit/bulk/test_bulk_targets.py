"""What a bulk run writes costs nothing that is there: inputs, outputs and files of others."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.unit.bulk.files import Run, lines, texts, write


@pytest.mark.parametrize("out", ["in.jsonl", "./in.jsonl", "sym.jsonl", "hard.jsonl"])
@pytest.mark.parametrize("more", [(), ("--restart",)])
def test_an_output_that_is_an_input_is_refused(run: Run, out: str, more: tuple[str, ...]) -> None:
    write("in.jsonl", texts(3))
    write("other.jsonl", texts(2))
    os.symlink("in.jsonl", "sym.jsonl")
    os.link("in.jsonl", "hard.jsonl")
    status, said = run("echo", "other.jsonl", "in.jsonl", "-o", out, *more)
    assert (status, f"-o {out} is one of the inputs, in.jsonl" in said) == (2, True), said
    assert "--restart" not in said
    assert Path("in.jsonl").read_text() == texts(3)
    assert not Path(f"{out}.parts").exists()


def test_an_input_among_the_parts_of_the_output_is_refused(run: Run) -> None:
    os.mkdir("out.jsonl.parts")
    write("out.jsonl.parts/in.jsonl", texts(3))
    status, said = run("echo", "out.jsonl.parts/in.jsonl", "-o", "out.jsonl", "--restart")
    assert (status, "writes to out.jsonl.parts" in said) == (2, True), said
    assert Path("out.jsonl.parts/in.jsonl").read_text() == texts(3)


def test_a_device_is_no_output(run: Run) -> None:
    os.mkfifo("pipe.jsonl")
    write("in.jsonl", texts(3))
    status, said = run("echo", "in.jsonl", "-o", "pipe.jsonl", "--restart")
    assert (status, "is no regular file" in said) == (2, True), said


def test_files_of_others_in_the_folder_of_parts_stay(run: Run) -> None:
    os.mkdir("out.jsonl.parts")
    write("out.jsonl.parts/mine.txt", "mine")
    write("in.jsonl", texts(3))
    for _ in range(2):
        assert run("echo", "in.jsonl", "-o", "out.jsonl", "--restart")[0] == 0
    assert [path.name for path in Path("out.jsonl.parts").iterdir()] == ["mine.txt"]
    assert len(lines("out.jsonl")) == 3
