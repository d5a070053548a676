"""The page of field cases: made of the tests' docstrings, complete, and as it is committed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cases import (
    CASES,
    GPU,
    PAGE,
    Case,
    CaseError,
    ShowingTest,
    main,
    page,
    page_of,
    read_cases,
    showing_tests_in,
)

ROOT = Path(__file__).parents[2]
TABLE = """
[C02]
elsewhere = "Another fault."
sources = ["a/b#1", "a/c#22"]
[C01]
elsewhere = "A fault."
sources = ["a/b.c#3"]
"""
TESTS = '''
def test_one():
    """C01: a sentence
    of two lines."""

class TestMore:
    @pytest.mark.parametrize("n", [1])
    async def test_two(self):
        """C01, C02: both."""

@pytest.mark.long
def test_long():
    """C02: takes long."""

@pytest.mark.skipif(os.getuid() != 0, reason="needs root")
def test_root():
    """C02: as another user."""

def test_none():
    """Cases such as C01: are not shown here."""

def no_test():
    """C01: is read by nobody."""
'''
ONE, OTHER = read_cases(TABLE)


def test_the_committed_page_is_the_one_that_the_tests_make() -> None:
    """As after `make readme`: each case has a test, and no test has a number of no case."""
    assert (ROOT / PAGE).read_text(encoding="utf-8") == page_of(ROOT)


def test_cases_are_read_by_number() -> None:
    assert Case("C01", "A fault.", ("a/b.c#3",)) == ONE
    assert Case("C02", "Another fault.", ("a/b#1", "a/c#22")) == OTHER


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        ('[C3]\nelsewhere = "A fault."\nsources = ["a/b#1"]', r"\[C3\] needs"),
        ('[C03]\nsources = ["a/b#1"]', r"\[C03\] needs `elsewhere`"),
        ('[C03]\nelsewhere = "No sentence"\nsources = ["a/b#1"]', r"\[C03\] needs"),
        ('[C03]\nelsewhere = "A fault."\nsources = []', r"\[C03\] needs"),
        ('[C03]\nelsewhere = "A fault."\nsources = ["a#1"]', r"'a#1' is not OWNER/REPOSITORY#NU"),
    ],
)
def test_a_case_without_its_sentence_or_source_is_named(entry: str, text: str) -> None:
    with pytest.raises(CaseError, match=text):
        read_cases(entry)


def test_tests_are_found_with_what_they_need() -> None:
    path = "tests/unit/test_it.py"
    assert list(showing_tests_in(path, TESTS)) == [
        ShowingTest(f"{path}::test_one", ("C01",)),
        ShowingTest(f"{path}::TestMore::test_two", ("C01", "C02")),
        ShowingTest(f"{path}::test_long", ("C02",), "`make test-long`"),
        ShowingTest(f"{path}::test_root", ("C02",), "as root"),
    ]
    (check,) = showing_tests_in(GPU, 'def check_it():\n    """C01: on it."""\n')
    assert check == ShowingTest(f"{GPU}::check_it", ("C01",), "on a machine with GPUs")


@pytest.mark.parametrize("docstring", ["C01 shows", "C01", "C01:", "C01,C02: both", "C01: "])
def test_a_docstring_that_only_looks_like_one_is_named(docstring: str) -> None:
    with pytest.raises(CaseError, match=r'test_it.py::test_it: expected "C24: ..."'):
        list(showing_tests_in("test_it.py", f'def test_it():\n    """{docstring}"""\n'))


def test_a_line_of_the_page() -> None:
    tests = [ShowingTest("a::b", ("C01", "C02")), ShowingTest("c::d", ("C01",), "as root")]
    one, other = page([ONE, OTHER], tests).splitlines()[-2:]
    assert one == (
        "| C01 | A fault. [a/b.c#3](https://github.com/a/b.c/issues/3)"
        " | `a::b`<br>`c::d` (as root) |"
    )
    assert other.endswith("/a/b/issues/1), [a/c#22](https://github.com/a/c/issues/22) | `a::b` |")


def test_cases_without_tests_and_tests_without_cases_are_named() -> None:
    with pytest.raises(CaseError, match="no test shows C01, C02"):
        page([ONE, OTHER], [])
    with pytest.raises(CaseError, match=r"a::b shows C02, which is not in tests/cases\.toml"):
        page([ONE], [ShowingTest("a::b", ("C01", "C02"))])


def test_the_command_writes_the_page_or_says_why_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / GPU).parent.mkdir(parents=True)
    (tmp_path / GPU).touch()
    (tmp_path / CASES).write_text(TABLE)
    assert main([str(tmp_path)]) == 1
    assert capsys.readouterr().err == "tests.cases: error: no test shows C01, C02\n"
    assert not (tmp_path / PAGE).exists()
    (tmp_path / "tests/test_it.py").write_text(TESTS)
    assert main([str(tmp_path)]) == 0
    assert (tmp_path / PAGE).read_text() == page_of(tmp_path)
