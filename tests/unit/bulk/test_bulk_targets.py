"""A bulk run overwrites nothing that is there: inputs, outputs and files of others."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from batchpool.bulk import targets
from batchpool.bulk.parts import Parts
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


def test_a_file_in_the_place_of_the_parts_is_told(run: Run) -> None:
    write("in.jsonl", texts(3))
    write("out.jsonl.parts", "of somebody")
    status, said = run("echo", "in.jsonl", "-o", "out.jsonl", "--restart")
    assert (status, "out.jsonl.parts is no folder" in said) == (2, True), said
    assert Path("out.jsonl.parts").read_text() == "of somebody"


def test_the_folder_of_the_parts_is_no_input(run: Run) -> None:
    os.mkdir("out.jsonl.parts")
    write("out.jsonl.parts/a.txt", "a")
    status, said = run("echo", "out.jsonl.parts", "-o", "out.jsonl", "--restart")
    assert (status, "writes to out.jsonl.parts" in said) == (2, True), said


def test_stdin_and_stdout_are_the_files_that_they_lead_to(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("in.jsonl", texts(3))
    with open("in.jsonl", "rb") as file:
        monkeypatch.setattr(targets, "_STDIN_FD", file.fileno())
        status, said = run("echo", "-", "-o", "in.jsonl", "--restart")
        assert (status, "-o in.jsonl is one of the inputs, -" in said) == (2, True), said
        monkeypatch.setattr(targets, "_STDOUT_FD", file.fileno())
        status, said = run("echo", "in.jsonl", "-o", "-")
        assert (status, "stdout is one of the inputs, in.jsonl" in said) == (2, True), said
    assert Path("in.jsonl").read_text() == texts(3)


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


def test_an_output_that_another_run_has_written_meanwhile_stays(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("in.jsonl", texts(3))
    opened = Parts.open

    def late(parts: Parts, *args: Any, **options: Any) -> Any:
        write("out.jsonl", "theirs")
        return opened(parts, *args, **options)

    monkeypatch.setattr(Parts, "open", late)
    status, said = run("echo", "in.jsonl", "-o", "out.jsonl")
    assert (status, "another run has written it meanwhile" in said) == (1, True), said
    assert Path("out.jsonl").read_text() == "theirs"


def test_a_link_to_nothing_in_a_folder_is_a_bad_row(run: Run) -> None:
    os.mkdir("folder")
    write("folder/a.txt", "one")
    os.symlink("nowhere", "folder/b.txt")
    status, said = run("echo", "folder", "-o", "out.jsonl")
    assert status == 3, said
    assert [bad["row"] for bad in lines("out.jsonl.errors.jsonl")] == [1]
    assert len(lines("out.jsonl")) == 1


BAD = texts(3) + '{"text": "bad"}\n'


@pytest.mark.parametrize(
    ("errors", "text"),
    [
        ("in.jsonl", "--errors in.jsonl is one of the inputs"),
        ("sym.jsonl", "--errors sym.jsonl is one of the inputs, in.jsonl"),
        ("./out.jsonl", "--errors ./out.jsonl is the output, too"),
        ("out.jsonl.parts/why.jsonl", "out.jsonl.parts"),
        (".", "--errors . is a folder"),
    ],
)
@pytest.mark.parametrize("more", [(), ("--restart",)])
def test_bad_rows_go_to_no_file_that_has_something_else(
    run: Run, errors: str, text: str, more: tuple[str, ...]
) -> None:
    write("in.jsonl", BAD)
    os.symlink("in.jsonl", "sym.jsonl")
    status, said = run("echo", "in.jsonl", "-o", "out.jsonl", "--errors", errors, *more)
    assert (status, text in said) == (2, True), said
    assert Path("in.jsonl").read_text() == BAD
    assert not Path("out.jsonl").exists()


@pytest.mark.parametrize(("out", "errors"), [("a/b/out.jsonl", "c/d/why.jsonl"), ("-", "c/why")])
def test_folders_of_both_files_are_made(run: Run, out: str, errors: str) -> None:
    write("in.jsonl", BAD)
    assert run("echo", "in.jsonl", "-o", out, "--errors", errors)[0] == 3
    assert [row["row"] for row in lines(errors)] == [3]
    if out != "-":
        assert len(lines(out)) == 3


def test_a_folder_in_which_nothing_is_written_does_not_stay(run: Run) -> None:
    os.mkdir("mine")
    write("in.jsonl", texts(3))
    assert run("echo", "in.jsonl", "-o", "a/out.jsonl", "--errors", "mine/c/d/why.jsonl")[0] == 0
    assert (len(lines("a/out.jsonl")), os.listdir("mine")) == (3, [])
    write("bad.jsonl", '{"text": "bad"}\n' * 3)
    for flags in (("--on-error", "stop"), ()):
        flags = ("echo", "bad.jsonl", "-o", "mine/b/out.jsonl", "--errors", "c/why", *flags)
        assert run(*flags)[0] == 1
        assert (os.listdir("mine"), Path("c").exists()) == ([], False)
    assert run("echo", "none.jsonl", "-o", "mine/b/out.jsonl")[0] == 1
    assert os.listdir("mine") == []


@pytest.mark.parametrize("flag", ["-o", "--errors"])
def test_a_file_in_the_place_of_a_folder_is_told_before_a_row_is_run(run: Run, flag: str) -> None:
    write("in.jsonl", BAD)
    write("file", "mine")
    paths = {"-o": "out.jsonl", "--errors": "why.jsonl"} | {flag: "file/b/out.jsonl"}
    sent: list[int] = []
    words = [word for pair in paths.items() for word in pair]
    status, said = run("echo", "in.jsonl", *words, at_submit=sent.append)
    assert (status, "cannot write to file/b/out.jsonl" in said, sent) == (1, True, []), said
    assert sorted(os.listdir(".")) == ["file", "in.jsonl"]


@pytest.mark.parametrize("out", ["out.jsonl", "-"])
def test_a_file_that_exists_is_not_replaced_by_bad_rows(run: Run, out: str) -> None:
    write("in.jsonl", BAD)
    write("mine.txt", "mine")
    flags = ("echo", "in.jsonl", "-o", out, "--errors", "mine.txt")
    status, said = run(*flags)
    assert (status, "mine.txt exists; --restart replaces it" in said) == (1, True), said
    assert Path("mine.txt").read_text() == "mine"
    assert not Path("out.jsonl.parts").exists()
    assert run(*flags, "--restart")[0] == 3
    assert [row["row"] for row in lines("mine.txt")] == [3]


def test_a_run_that_goes_on_replaces_its_own_bad_rows_alone(run: Run) -> None:
    write("in.jsonl", BAD + texts(20))
    flags = ("echo", "in.jsonl", "-o", "out.jsonl", "--chunk-rows", "4")

    def at_submit(number: int) -> None:
        if number == 5:
            raise KeyboardInterrupt

    assert run(*flags, at_submit=at_submit)[0] == 130
    write("out.jsonl.errors.jsonl", "as a kill between the two renames leaves it")
    write("mine.txt", "mine")
    status, said = run(*flags, "--errors", "mine.txt")
    assert (status, "mine.txt exists" in said) == (1, True), said
    assert run(*flags)[0] == 3
    assert [row["row"] for row in lines("out.jsonl.errors.jsonl")] == [3]
    assert Path("mine.txt").read_text() == "mine"


@pytest.mark.parametrize("out", ["docs/out.jsonl", "docs/inner/../out.jsonl"])
def test_an_output_in_the_folder_of_the_input_is_no_row(run: Run, out: str) -> None:
    os.makedirs("docs/inner")
    for i in range(40):
        write(f"docs/inner/{i:02d}.txt", "bad" if i == 3 else f"{i}")
    flags = ("echo", "docs", "-o", out, "--keep", "path", "--chunk-rows", "4")

    def at_submit(number: int) -> None:
        if number == 6:
            raise KeyboardInterrupt

    assert run(*flags, at_submit=at_submit)[0] == 130
    assert list(Path("docs/out.jsonl.parts").glob("*.rows"))
    expected = [f"docs/inner/{i:02d}.txt" for i in range(40) if i != 3]
    for more in ((), ("--restart",)):
        status, said = run(*flags, *more)
        assert (status, "40 rows, 1 of them bad" in said) == (3, True), said
        assert [row["path"] for row in lines("docs/out.jsonl")] == expected
        assert len(lines("docs/out.jsonl.errors.jsonl")) == 1


def test_a_link_in_a_folder_to_the_output_is_an_input(run: Run) -> None:
    os.mkdir("docs")
    write("out.jsonl", texts(1))
    os.symlink("../out.jsonl", "docs/link.jsonl")
    status, said = run("echo", "docs", "-o", "out.jsonl", "--restart")
    assert (status, "is one of the inputs, docs/link.jsonl" in said) == (2, True), said
