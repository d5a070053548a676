"""Each house rule fails when it is broken, names the place, and says nothing of a sound house."""

from __future__ import annotations

import pytest

from tests.house.imports import circles
from tests.house.names import words
from tests.house.rules import RULES
from tests.house.sizes import MOST_METHODS
from tests.house.sound import BREAKS, CODEC, SOUND, Break, class_of
from tests.house.tree import Tree


@pytest.mark.parametrize("name", RULES)
def test_rule_holds_in_a_sound_house(name: str) -> None:
    assert RULES[name](Tree.of(SOUND)) == []


@pytest.mark.parametrize("case", BREAKS, ids=lambda case: f"{case.rule}: {case.offences[0]}")
def test_broken_rule_names_the_place(case: Break) -> None:
    found = RULES[case.rule](Tree.of(SOUND | case.files))
    assert len(found) == len(case.offences), found
    for offence, part in zip(found, case.offences, strict=True):
        assert part in offence
        assert any(path in offence or path.split("/")[1] in offence for path in case.files)


def test_every_rule_is_broken_once() -> None:
    assert {case.rule for case in BREAKS} == set(RULES)


def test_a_reason_excuses_a_large_class() -> None:
    reason = "# methods: one for each event of the protocol\n"
    rule = RULES["large_classes"]
    assert rule(Tree.of({CODEC: class_of(MOST_METHODS + 1, reason)})) == []
    assert rule(Tree.of({CODEC: class_of(MOST_METHODS)})) == []


def test_a_rule_sees_an_edited_file_and_the_others_as_they_were() -> None:
    tree = Tree.of(SOUND)
    edited = tree.edited("batchpool/core/errors.py", "import time\n")
    rule = RULES["impurities_of_core"]
    assert rule(edited) == ["batchpool/core/errors.py:1: imports time"]
    assert rule(tree) == []
    assert edited.sources[CODEC] is tree.sources[CODEC]


@pytest.mark.parametrize(
    ("edges", "expected"),
    [
        ([], []),
        ([("a", "b"), ("b", "c"), ("a", "c")], []),
        ([("a", "a")], []),
        ([("a", "b"), ("b", "a")], ["a, b"]),
        (
            [("a", "b"), ("b", "c"), ("c", "a"), ("c", "d"), ("d", "e"), ("e", "d")],
            ["d, e", "a, b, c"],
        ),
    ],
)
def test_circles(edges: list[tuple[str, str]], expected: list[str]) -> None:
    assert circles(edges) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ring", {"ring"}),
        ("LaneManager", {"lane", "manager"}),
        ("http_utils", {"http", "util", "utils"}),
        ("HTTPHandler", {"http", "handler"}),
        ("metadata", {"metadata"}),
        ("_base2", {"base"}),
    ],
)
def test_words_of_a_name(name: str, expected: set[str]) -> None:
    assert words(name) == expected
