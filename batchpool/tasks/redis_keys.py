"""Names of keys, and the partition of a task.

All keys of a partition have its number as their hash tag, so that they lie in one slot of a
cluster:

    bp:{p}:n         hash: tasks by STATE:MODEL, open tasks, bytes, dead letters
    bp:{p}:c         hash: open tasks by origin; b: bytes of tasks and results by origin
    bp:{p}:t:ID      hash: a task, its input while it is open, its result after that
    bp:{p}:q:MODEL   sorted set: origins of which tasks wait, by their turn, which
                     batchpool/tasks/turns.py explains
    bp:{p}:turn:MODEL    the turn of the origin that was claimed last
    bp:{p}:left:MODEL    sorted set: origins of which nothing waits, by their turn, as far as it
                     lies behind that one
    bp:{p}:q:MODEL:ORIGIN   sorted set: tasks of an origin that wait, by their turn within it
                     (no name of a model has a colon)
    bp:{p}:at:MODEL  hash: the turn that was claimed last within an origin
    bp:{p}:ends:MODEL:ORIGIN   sorted set: callers of an origin by the end of their line of such
                     tasks, as far as it lies behind that one
    bp:{p}:w:MODEL   sorted set: tasks that boxes of version 3 have queued, until a claim lets them
                     join the others
    bp:{p}:run:MODEL sorted set: claimed tasks, by their owner's last sign of life, in the server's
                     time
    bp:{p}:later:MODEL   sorted set: tasks that are tried again, by the time
    bp:{p}:i:KEY     the id of the task with an Idempotency-Key
    bp:{p}:open      sorted set: open tasks by submission; until: by deadline
    bp:{p}:ended     sorted set: ID STATE SIZE MODEL by the time at which the result is dropped
    bp:{p}:dead      sorted set: numbers of dead letters; bp:{p}:l:N is the hash of one
    bp:{p}:holders   sorted set: origins by the bytes of their dead letters
    bp:{p}:dead_of:ORIGIN   sorted set: of dead, those of one origin
    bp:boxes         sorted set: owners by their last sign of life
    bp:letters       the number of the last dead letter, of all partitions
    bp:cfg           hash: version and partitions, fixed when the store was made
"""

from __future__ import annotations

from batchpool.tasks.record import partition_of

VERSION = 4
UPGRADED_VERSION = 3  # what its boxes have kept, and still keep, is read and served
PARTITIONS = 16
PARTITION_PREFIX = "bp:{"
BOXES, LETTERS, CONFIG = "bp:boxes", "bp:letters", "bp:cfg"


def key(partition: int, name: str) -> str:
    """The key `name` of a partition."""
    return f"{PARTITION_PREFIX}{partition}}}:{name}"


def counts_key(partition: int) -> str:
    """The key by which a script learns its partition."""
    return key(partition, "n")


def task_partition(identifier: str, partitions: int) -> int | None:
    """The partition of a task; None for a text that is no id."""
    number = partition_of(identifier)
    return None if number is None else number % partitions
