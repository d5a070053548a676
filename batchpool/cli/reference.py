"""Reference documents made from the code: configuration, errors, metrics, states, messages.

`example_toml` is a file that loads and changes nothing: every key stands in it with its help,
commented out at its default. The functions named `*_markdown` make tables for the documents, in
which each table stands between two markers, `<!-- NAME -->` and `<!-- /NAME -->`.

    python -m batchpool.cli.reference [FOLDER]

makes all of them anew in the documents of a checkout (default: the current directory).
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from batchpool.control.message_tables import tables_markdown
from batchpool.core.config.describe import default_text, values_text
from batchpool.core.config.key import Key, shown
from batchpool.core.config.schema import ModelConfig
from batchpool.core.config.server_table import ServerConfig
from batchpool.core.config.table import keys_of
from batchpool.core.errors import all_errors
from batchpool.core.layout.states import MOVES, OWNER
from batchpool.core.metrics.table import METRICS

EXAMPLE_IMPORT = "batchpool.examples.affine:Affine"


def example_toml() -> str:
    """A commented configuration file with every key at its default."""
    lines = [
        "# batchpool configuration. Every key is here. A line that starts with # and no space",
        "# is a key at its default: remove the # to change it. Unknown keys are errors.",
        "",
        "[server]",
    ]
    for key in keys_of(ServerConfig).values():
        lines += _key_lines(key)
    lines += ["", "# One [[model]] table for each model.", "[[model]]"]
    for key in keys_of(ModelConfig).values():
        lines += _key_lines(key)
    return "\n".join(lines) + "\n"


def _key_lines(key: Key) -> list[str]:
    lines = [""]
    for text in (key.help, f"value: {values_text(key)}"):
        text = text[0].upper() + text[1:] + "."
        lines += textwrap.wrap(
            text, 96, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False
        )
    if key.field == "import_name":
        return [*lines, f"{key.name} = {shown(EXAMPLE_IMPORT)}"]
    return [*lines, f"#{key.name} = {default_text(key)}"]


def reference_markdown() -> str:
    """Both tables of the configuration as Markdown."""
    parts = []
    for title, table in (("[server]", ServerConfig), ("[[model]]", ModelConfig)):
        rows = [f"`{title}`", "", "| key | default | meaning | value |", "|---|---|---|---|"]
        for key in keys_of(table).values():
            default = "required" if key.field == "import_name" else f"`{default_text(key)}`"
            cells = [f"`{key.name}`", default, key.help, values_text(key)]
            rows.append("| " + " | ".join(cells) + " |")
        parts.append("\n".join(rows))
    return "\n\n".join(parts) + "\n"


def errors_markdown() -> str:
    """Every error as a Markdown table: HTTP status, code, exception, meaning."""
    rows = ["| status | `code` | `bp.` exception | when |", "|---|---|---|---|"]
    for kind in all_errors():
        meaning = " ".join((kind.__doc__ or "").split()).rstrip(".")
        rows.append(f"| {kind.status} | `{kind.code}` | `{kind.__name__}` | {meaning} |")
    return "\n".join(rows) + "\n"


def metrics_markdown() -> str:
    """Every metric as a Markdown table: name, kind, labels, meaning."""
    rows = ["| metric | kind | labels | what |", "|---|---|---|---|"]
    for metric in METRICS:
        labels = ", ".join(f"`{name}`" for name in metric.label_names)
        rows.append(f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help} |")
    return "\n".join(rows) + "\n"


def messages_markdown() -> str:
    """Every control message as Markdown tables, one for each edge between two kinds of process."""
    return tables_markdown() + "\n"


def slot_states_markdown() -> str:
    """The states of a slot: a Mermaid diagram of the legal moves, and a table with the owners."""
    diagram = ["```mermaid", "stateDiagram-v2", "    [*] --> FREE"]
    rows = ["| state | owner of the state word | may become |", "|---|---|---|"]
    for state, moves in MOVES.items():
        for after, cause in moves.items():
            diagram.append(f"    {state.name} --> {after.name}: {cause}")
        cells = ", ".join(f"`{after.name}` ({cause})" for after, cause in moves.items())
        rows.append(f"| `{state.name}` | {OWNER[state].value} | {cells} |")
    return "\n".join([*diagram, "```", "", *rows]) + "\n"


SECTIONS: dict[str, Callable[[], str]] = {
    "config": reference_markdown,
    "errors": errors_markdown,
    "metrics": metrics_markdown,
    "slot-states": slot_states_markdown,
    "messages": messages_markdown,
}
DOCUMENTS = {
    "docs/configuration.md": ("config",),
    "docs/http.md": ("errors",),
    "docs/operations.md": ("metrics",),
    "docs/architecture.md": ("slot-states", "messages"),
}


def refreshed(document: str, names: Iterable[str]) -> str:
    """The document's text with the named sections between their markers made anew.

    Raises ValueError where the markers of a section are missing.
    """
    for name in names:
        start, end = f"<!-- {name} -->", f"<!-- /{name} -->"
        head, found, rest = document.partition(start)
        _, closed, tail = rest.partition(end)
        if not found or not closed:
            raise ValueError(f"the document has no section {start} ... {end}")
        document = f"{head}{start}\n\n{SECTIONS[name]()}\n{end}{tail}"
    return document


def main(words: Sequence[str]) -> int:
    """Make the generated sections of all documents below the folder `words[0]` anew."""
    folder = Path(words[0] if words else ".")
    for name, sections in DOCUMENTS.items():
        path = folder / name
        path.write_text(refreshed(path.read_text(encoding="utf-8"), sections), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
