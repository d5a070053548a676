"""Options become arguments of `__init__` by its annotations; an error tells what it takes."""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import pytest

from batchpool.core.config.options import OptionText
from batchpool.core.errors import ConfigError
from batchpool.model import Model
from batchpool.worker.options import converted_options, plain_options

if TYPE_CHECKING:
    import torch


class Takes(Model):
    def __init__(
        self,
        path: Path,
        layers: Annotated[int, msgspec.Meta(ge=1)] = 2,
        *,
        kind: Literal["a", "b"] = "a",
        sizes: tuple[int, ...] = (),
        scale: float | None = None,
        of: dict[str, int] | None = None,
        on: bool = False,
        text: str = "",
        guessed=5,  # type: ignore[no-untyped-def]
        anything=None,
    ) -> None: ...


class Plain(Model):
    pass


class TakesMore(Model):
    def __init__(self, k: int = 1, **more: Any) -> None: ...


class Unreadable(Model):
    def __init__(self, on: torch.device) -> None: ...


class NotPlain(Model):
    def __init__(self, of: Model) -> None: ...


def test_plain_values_are_converted_and_come_back_the_same() -> None:
    given = {
        "path": "/a",
        "layers": 3,
        "sizes": [1, 8],
        "scale": 2,
        "of": {"x": 1},
        "anything": [1],
    }
    found = converted_options(Takes, given)
    assert found == {**given, "path": Path("/a"), "sizes": (1, 8)}
    plain = json.loads(json.dumps(plain_options(found)))  # as the supervisor gets them
    assert plain == given
    assert converted_options(Takes, plain) == found
    assert converted_options(Plain, {}) == {}


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("path", "3", Path("3")),
        ("layers", "3", 3),
        ("kind", "b", "b"),
        ("sizes", "1,8", (1, 8)),
        ("sizes", "[1, 8]", (1, 8)),
        ("scale", "2", 2.0),
        ("scale", "null", None),
        ("of", "{x = 1}", {"x": 1}),
        ("on", "true", True),
        ("text", "007", "007"),
        ("text", '"q: "', '"q: "'),
        ("guessed", "7", 7),
        ("anything", "7", "7"),
    ],
)
def test_a_text_of_the_command_line_has_the_type_of_the_argument(
    name: str, text: str, value: Any
) -> None:
    found = converted_options(Takes, {"path": "p", name: OptionText(text)})
    assert found[name] == value
    assert type(found[name]) is type(value)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"layers": 1},
            "option path is missing; Takes has .* path: Path, layers: int >= 1",
        ),
        ({"pth": "x"}, r'unknown option pth = "x"; did you mean "path"\?; Takes has the options'),
        ({"path": "x", "zzz": 1}, "unknown option zzz = 1; Takes has the options"),
        ({"path": 3}, "option path = 3: .*expected"),
        ({"path": "x", "layers": "3"}, 'option layers = "3": expected `int`, got `str`; Takes'),
        ({"path": "x", "layers": 1.5}, "option layers = 1.5: expected `int`, got `float`"),
        ({"path": "x", "layers": 0}, "option layers = 0: expected `int` >= 1"),
        ({"path": "x", "layers": OptionText("x")}, 'layers = "x": expected `int`; Takes'),
        ({"path": "x", "sizes": OptionText("1,x")}, r'expected `int`, got "x" at \[1\]; Takes'),
        ({"path": "x", "sizes": OptionText("[1, y]")}, "expected `list`; it is no TOML: Invalid"),
        ({"path": "x", "sizes": OptionText('["z"]')}, r'expected `int`, got "z" at \[0\]; Takes'),
        ({"path": "x", "of": OptionText("x")}, r'of = "x": expected `table \| null`; Takes'),
        ({"path": "x", "kind": "c"}, 'option kind = "c": expected "a" or "b"; Takes'),
        ({"path": "x", "of": {"x": "y"}}, r"expected `int`, got `str` - at `\$\[...\]`"),
        ({"path": "x", "guessed": True}, "option guessed = true: expected `int`, got `bool`"),
    ],
)
def test_what_does_not_fit_is_told_with_all_options(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text) as caught:
        converted_options(Takes, options)
    assert "kind: Literal['a', 'b'] = 'a'" in str(caught.value)


Kind = Literal["a", "b"]
Share = Annotated[float, msgspec.Meta(gt=0, le=1)]


class TakesAliases(Plain):
    def __init__(self, kind: Kind = "a", share: Share = 0.5) -> None: ...


def test_a_type_with_a_name_of_its_own_is_told_by_its_values_and_bounds() -> None:
    with pytest.raises(ConfigError) as caught:
        converted_options(TakesAliases, {"k": 1})
    assert str(caught.value).endswith(
        "; TakesAliases has the options kind: Literal['a', 'b'] = 'a', share: float > 0 and <= 1 ="
        " 0.5"
    )


def test_a_class_without_options_says_so() -> None:
    with pytest.raises(ConfigError, match=r"^unknown option k = 1; Plain has none$"):
        converted_options(Plain, {"k": 1})


def test_a_class_may_take_any_option() -> None:
    found = converted_options(TakesMore, {"k": 2, "a": [1], "b": OptionText("5")})
    assert found == {"k": 2, "a": [1], "b": "5"}
    assert type(found["b"]) is str
    with pytest.raises(ConfigError, match=r"the options k: int = 1, any other$"):
        converted_options(TakesMore, {"k": "x"})


def test_an_annotation_that_no_option_can_have_is_named() -> None:
    with pytest.raises(ConfigError, match=r"annotation torch.device cannot be read: name 'torch'"):
        converted_options(Unreadable, {"on": "cpu"})
    with pytest.raises(ConfigError, match="an option cannot be made a Model"):
        converted_options(NotPlain, {"of": "x"})


@dataclass
class Head:
    layers: int
    widths: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.layers > 5:
            raise ValueError(f"at most 5 layers, not {self.layers}")


class TakesHead(Model):
    def __init__(self, head: Head) -> None: ...


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("{layers = 9}", "at most 5 layers, not 9"),
        ("{layers = 1, widths = [1, 'y']}", 'expected `int`, got "y" at widths[1]'),
        ("{widths = []}", "it lacks the field `layers`"),
        ("5", "expected `table`"),
    ],
)
def test_the_reason_within_an_option_is_told(given: str, why: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f": {why}; TakesHead has the options")):
        converted_options(TakesHead, {"head": OptionText(given)})
    if given.startswith("{"):
        plain = tomllib.loads(f"head = {given}")
        with pytest.raises(ConfigError, match=re.escape(f": {why}; TakesHead has the options")):
            converted_options(TakesHead, plain)


@dataclass
class Fields(Model):
    layers: int
    path: Path = Path("weights")


def test_the_fields_of_a_dataclass_are_options() -> None:
    assert converted_options(Fields, {"layers": OptionText("3"), "path": "/a"}) == {
        "layers": 3,
        "path": Path("/a"),
    }
    with pytest.raises(
        ConfigError, match="option layers is missing; Fields has the options layers"
    ):
        converted_options(Fields, {})
