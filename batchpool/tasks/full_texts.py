"""Texts for a caller whose new task meets a limit of the store."""

from __future__ import annotations

from batchpool.tasks.record import PutOutcome, StoreLimits


def full_text(outcome: PutOutcome, limits: StoreLimits, origin: str) -> str:
    """The limit that holds, its number, whose it is, and what makes room. origin: of the caller."""
    match outcome:
        case PutOutcome.BYTES_FULL:
            return (
                f"tasks, results and dead letters take {limits.bytes >> 20} MiB, the most that is"
                " kept (tasks_max_mib): collect or DELETE results, or come back after Retry-After"
            )
        case PutOutcome.BYTES_SHARE_FULL:
            return (
                f"queued tasks and uncollected results of {_whose(origin)} take their share of the"
                f" {limits.bytes >> 20} MiB that are kept (tasks_max_mib): one caller may have"
                f" {limits.share:.0%} of what the others leave (tasks_caller_share). Collect or"
                " DELETE its results, or come back after Retry-After"
            )
        case PutOutcome.SHARE_FULL:
            return (
                f"{_whose(origin)} has half of the {limits.open} open tasks that are taken"
                " (tasks_max), the most while others have some too: come back after Retry-After,"
                " when some of its own have ended"
            )
        case _:
            return (
                f"there are {limits.open} open tasks, the most that are taken (tasks_max): come"
                " back after Retry-After, when some have ended"
            )


def _whose(origin: str) -> str:
    """The caller as its operator knows it."""
    if origin.startswith("key "):
        return f"the caller with the {origin}"
    return f"the caller at {origin}" if origin else "this caller"
