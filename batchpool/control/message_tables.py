"""The tables of all control messages, made from their structs, for the documents."""

from __future__ import annotations

import inspect

from batchpool.control.batch_messages import BatchCounts, BatchForm, FaultForm, FileForm
from batchpool.control.edges import EDGES, FROM_CLIENT, FROM_FRONTEND, Edge, tag_of
from batchpool.control.messages import Form, LaneForm, Message, ModelForm
from batchpool.control.process_messages import BatcherModel, ProbedForm, StageLimits
from batchpool.control.task_messages import LetterForm, TaskForm

_PARTS: tuple[type[Form], ...] = (
    ModelForm,
    LaneForm,
    BatcherModel,
    StageLimits,
    ProbedForm,
    TaskForm,
    LetterForm,
    FileForm,
    BatchForm,
    FaultForm,
    BatchCounts,
)
_TYPES = {"Natural": "int >= 0", "Row": "int >= -1"}
_HEAD = "| message | fields | descriptors | meaning |\n|---|---|---|---|"


def tables_markdown() -> str:
    """A markdown section for each edge, and one for the parts of messages."""
    rows = "\n".join(_row(part, part.__name__, ()) for part in _PARTS)
    parts = f"### Parts of messages\n\n{_HEAD.replace('message', 'part', 1)}\n{rows}"
    return "\n\n".join([*map(_section, EDGES), parts])


def _section(edge: Edge[Message]) -> str:
    text, shown = f"### {edge.name}\n\n", edge.messages
    if edge is FROM_FRONTEND:
        text += f"All messages {FROM_CLIENT.name}, and:\n\n"
        shown = tuple(kind for kind in shown if kind not in FROM_CLIENT.messages)
    rows = "\n".join(_row(kind, tag_of(kind), kind.descriptors) for kind in shown)
    return f"{text}{_HEAD}\n{rows}"


def _row(kind: type[Form], name: str, descriptors: tuple[str, ...]) -> str:
    fields = ", ".join(
        f"`{field}`: {_type_text(kind.__annotations__[field])}" for field in kind.__struct_fields__
    )
    meaning = " ".join((inspect.getdoc(kind) or "").split())
    return f"| `{name}` | {fields} | {', '.join(descriptors)} | {meaning} |"


def _type_text(annotation: str) -> str:
    """A field's type as a reader of a table wants it."""
    for name, text in _TYPES.items():
        annotation = annotation.replace(name, text)
    return annotation.replace("tuple[", "list[").replace(", ...]", "]").replace(" | ", " or ")
