"""Questions of an operator about all partitions: the counts, and the newest tasks."""

from __future__ import annotations

from batchpool.control.task_messages import TaskForm
from batchpool.tasks.record import StoreCounts
from batchpool.tasks.redis_cells import Cells
from batchpool.tasks.redis_forms import FORM, form_of, number, state_of, text
from batchpool.tasks.redis_keys import key, task_partition
from batchpool.tasks.redis_link import Command

_READ_AT_ONCE = 256
_LOOKED_AT_MOST = 100_000


def counted(cells: Cells) -> StoreCounts:
    """The contents of the store."""
    tasks: dict[str, dict[str, int]] = {}
    letters = size = 0
    for found in cells.commands("HGETALL", "n"):
        for name, value in found.items():  # the client makes a dict of this reply
            label, n = text(name), number(value)
            state, colon, model = label.partition(":")
            if colon:
                of_model = tasks.setdefault(model, {})
                state_label = state_of(state.encode()).label
                of_model[state_label] = of_model.get(state_label, 0) + n
            letters += n if label == "letters" else 0
            size += n if label == "bytes" else 0
    first = cells.commands("ZRANGE", "open", 0, 0, "WITHSCORES")
    oldest = [number(found[1]) for found in first if found]  # of member, score
    return StoreCounts(dict(sorted(tasks.items())), letters, size, min(oldest, default=0))


def newest(cells: Cells, state: str, model: str, most: int) -> list[TaskForm]:
    """The newest tasks; "" is every state, or every model."""
    names = []
    per_partition = _LOOKED_AT_MOST // cells.number - 1
    for kind in ("open", "ended"):
        for found in cells.commands("ZREVRANGE", kind, 0, per_partition):
            names += [text(name).partition(" ")[0] for name in found]
    names.sort(reverse=True)  # an id begins with its time
    forms: list[TaskForm] = []
    while names and len(forms) < most:
        now, names = names[:_READ_AT_ONCE], names[_READ_AT_ONCE:]
        keys = [key(task_partition(name, cells.number) or 0, f"t:{name}") for name in now]
        for reply in cells.link.run([Command(k, ("HMGET", k, *FORM)) for k in keys]):
            if reply[1] is None:  # it has gone meanwhile
                continue
            form = form_of(reply)
            if state in ("", form.state) and model in ("", form.model):
                forms.append(form)
    return forms[:most]
