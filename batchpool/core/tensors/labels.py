"""Labels of a classifier's output: the name of each element of its row."""

from __future__ import annotations

from typing import Any

from batchpool.core.errors import ConfigError


def checked_labels(name: str, labels: Any, elements: int | None) -> tuple[str, ...]:
    """The labels of a tensor as a tuple; ConfigError says what is wrong with them.

    elements: of one row of the tensor; None where that is not a fixed number of numbers.
    """
    if not isinstance(labels, (list, tuple)):
        raise ConfigError(
            f"tensor {name!r}: labels is {labels!r}; a list of one text for each element of its"
            " row was expected"
        )
    if not labels:
        return ()
    for label in labels:
        if not isinstance(label, str):
            raise ConfigError(f"tensor {name!r}: label {label!r} is no text")
    if elements is None:
        raise ConfigError(
            f"tensor {name!r} has labels, which belong to an output of numbers of a fixed shape"
        )
    if len(labels) != elements:
        raise ConfigError(
            f"tensor {name!r} has {len(labels)} labels, and {elements} elements a row; one label"
            " for each was expected"
        )
    return tuple(labels)
