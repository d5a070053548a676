"""The manuals of configuration, errors and metrics, derived from the code that defines them.

`example_toml` is a file that loads and changes nothing: every key is there with its help,
commented out at its default. `reference_markdown` is the same as tables for the README.
"""

from __future__ import annotations

import textwrap

from batchpool.core.config.schema import Key, ModelConfig, ServerConfig, keys_of, shown
from batchpool.core.errors import all_errors
from batchpool.core.metrics.table import METRICS

EXAMPLE_IMPORT = "batchpool.examples.affine:Affine"


def default_text(key: Key) -> str:
    """The default as TOML writes it; "auto" for a number that the pool decides."""
    if key.auto and key.kind == "int" and key.default == 0:
        return '"auto"'
    if key.kind == "float":
        return f"{key.default:g}"
    return shown(key.default)


def values_text(key: Key) -> str:
    """What a value may be, with what the pool decides where it is left open."""
    if not key.auto:
        return key.expected
    if key.kind == "int":
        return f"{key.expected}, which is {key.auto}"
    return f'{key.expected}; "" means {key.auto}'


def example_toml() -> str:
    """A commented configuration file with every key at its default."""
    lines = [
        "# batchpool configuration. Every key is here. A line that starts with # and no space",
        "# is a key at its default: remove the # to change it. Unknown keys are errors.",
        "",
        "[server]",
    ]
    for key in keys_of(ServerConfig).values():
        lines += _entry(key)
    lines += ["", "# One [[model]] table for each model.", "[[model]]"]
    for key in keys_of(ModelConfig).values():
        lines += _entry(key)
    return "\n".join(lines) + "\n"


def _entry(key: Key) -> list[str]:
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


def refreshed(readme: str) -> str:
    """The README's text with its generated sections between the markers made anew."""
    sections = {
        "config": reference_markdown(),
        "errors": errors_markdown(),
        "metrics": metrics_markdown(),
    }
    for name, made in sections.items():
        start, end = f"<!-- {name} -->", f"<!-- /{name} -->"
        head, found, rest = readme.partition(start)
        _, closed, tail = rest.partition(end)
        if not found or not closed:
            raise ValueError(f"the README has no section {start} ... {end}")
        readme = f"{head}{start}\n\n{made}\n{end}{tail}"
    return readme
