"""ConsumePlan: what `batchpool consume` was asked to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from batchpool.consume.topics import Topic


@dataclass(frozen=True)
class ConsumePlan:
    """The arguments of one consumer.

    source, target, dead: topics of records, of results, of records that failed for good. group: of
    the consumers that share the partitions. columns: {input: member of a record's object}. form:
    of the records' values. outputs: names of those that a result has; all if empty. kafka: further
    settings of the connections, as aiokafka names them. most: rows under way at the same time; 0
    for as many as the pool takes of one client. begins: "earliest" or "latest", for a group that
    has committed nothing yet.
    """

    source: Topic
    target: Topic
    dead: Topic
    model: str
    group: str
    columns: Mapping[str, str]
    form: str
    outputs: Sequence[str]
    parameters: Mapping[str, Any]
    kafka: Mapping[str, Any]
    most: int
    begins: str
