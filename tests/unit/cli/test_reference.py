"""The example file and the documents' generated tables say what the code says."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from batchpool.cli.reference import (
    DOCUMENTS,
    EXAMPLE_IMPORT,
    SECTIONS,
    errors_markdown,
    example_toml,
    main,
    messages_markdown,
    reference_markdown,
    refreshed,
    slot_states_markdown,
)
from batchpool.control.edges import EDGES, tag_of
from batchpool.core.config.describe import default_text, values_text
from batchpool.core.config.schema import TABLES, Config, ModelConfig
from batchpool.core.config.table import keys_of
from batchpool.core.config.toml_file import load_toml
from batchpool.core.errors import all_errors
from batchpool.core.layout.states import MOVES

ROOT = Path(__file__).parents[3]
DEFAULTS = Config(models=(ModelConfig(import_name=EXAMPLE_IMPORT),))


def test_the_example_loads_and_changes_nothing() -> None:
    assert load_toml(example_toml(), "example") == DEFAULTS


def test_the_example_with_every_key_switched_on_changes_nothing() -> None:
    text = re.sub(r"^#(?! )", "", example_toml(), flags=re.MULTILINE)
    assert load_toml(text, "example") == DEFAULTS
    document = tomllib.loads(text)
    assert list(document["server"]) == list(keys_of(TABLES["server"]))
    assert list(document["model"][0]) == list(keys_of(TABLES["model"]))


def test_the_example_explains_every_key_above_it() -> None:
    text = example_toml()
    assert (
        "# Largest HTTP request body.\n"
        "# Value: a whole number of MiB from 1 to 1048576.\n"
        "#max_body_mib = 64\n"
    ) in text
    assert (
        "# HTTP front-end processes.\n"
        '# Value: a whole number from 1 to 256 or "auto", which is a quarter of the cores,'
        " 1 to 4.\n"
        '#frontends = "auto"\n'
    ) in text
    assert max(map(len, text.splitlines())) <= 96


def test_the_reference_has_one_line_for_each_key() -> None:
    lines = reference_markdown().splitlines()
    for table in TABLES.values():
        for key in keys_of(table).values():
            (line,) = [text for text in lines if text.startswith(f"| `{key.name}` |")]
            default = "required" if key.name == "import" else f"`{default_text(key)}`"
            assert line == f"| `{key.name}` | {default} | {key.help} | {values_text(key)} |"


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_generated_sections_of_a_document_are_fresh(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    assert refreshed(text, DOCUMENTS[name]) == text, "run `make readme`"


def test_every_generated_section_stands_in_one_document() -> None:
    assert sorted(section for names in DOCUMENTS.values() for section in names) == sorted(SECTIONS)


def test_a_document_without_the_markers_is_refused() -> None:
    with pytest.raises(ValueError, match="<!-- config -->"):
        refreshed("no markers here", ("config",))


def test_the_command_renews_every_document(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    for name, sections in DOCUMENTS.items():
        stale = "".join(f"<!-- {section} -->\nSTALE\n<!-- /{section} -->\n" for section in sections)
        (tmp_path / name).write_text(f"before\n{stale}after\n")
    assert main([str(tmp_path)]) == 0
    for name, sections in DOCUMENTS.items():
        text = (tmp_path / name).read_text()
        assert text.startswith("before\n")
        assert text.endswith("after\n")
        assert "STALE" not in text
        assert all(SECTIONS[section]() in text for section in sections)


def test_the_diagram_of_the_slot_states_has_every_legal_move() -> None:
    text = slot_states_markdown()
    assert text.count(" --> ") == 1 + sum(map(len, MOVES.values()))
    assert "    FILLING --> SUBMITTED: submit\n" in text
    assert "| `DONE` | client | `FREE` (reap) |" in text


def test_every_message_of_every_edge_has_a_row() -> None:
    text = messages_markdown()
    for edge in EDGES:
        assert f"### {edge.name}\n" in text
        for message in edge.messages:
            assert f"\n| `{tag_of(message)}` | " in text
    assert "| `serving` |  |  | The front end has its lanes and serves its HTTP socket. |" in text


def test_every_error_stands_in_the_table_with_its_own_status_and_code() -> None:
    lines = errors_markdown().splitlines()[2:]
    assert len(lines) == len(all_errors()) == 24
    assert "| 503 | `overloaded` | `Overloaded` |" in "\n".join(lines)
    assert not any("| |" in line for line in lines), "every class says when it is raised"
