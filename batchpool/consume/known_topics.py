"""Topics that the brokers do not have: a misspelt source would wait for records without a word."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Collection, Iterable, Mapping
from importlib import import_module
from typing import Any

from batchpool.consume.plan import ConsumePlan

_LOG = logging.getLogger("batchpool.consume")


async def warn_of_missing_topics(plan: ConsumePlan) -> None:
    """Log each topic of a plan that its brokers do not show to this user. Asking makes no topic.

    Raises aiokafka's errors where the brokers do not answer.
    """
    sources = await _topics_of(plan.source.brokers, plan.kafka)
    targets = sources
    if plan.target.brokers != plan.source.brokers:
        targets = await _topics_of(plan.target.brokers, plan.kafka)
    for text in (
        *missing_texts([("the source", plan.source.name)], sources),
        *missing_texts([("--to", plan.target.name), ("--dead", plan.dead.name)], targets),
    ):
        _LOG.warning("%s", text)


async def _topics_of(brokers: str, settings: Mapping[str, Any]) -> set[str]:
    admin = import_module("aiokafka.admin").AIOKafkaAdminClient(
        bootstrap_servers=brokers, **settings
    )
    try:
        await admin.start()
        return set(await admin.list_topics())
    finally:
        await admin.close()


def missing_texts(named: Iterable[tuple[str, str]], known: Collection[str]) -> list[str]:
    """A text for each topic that is not known. named: (flag, topic)."""
    texts = []
    for flag, name in named:
        if name in known:
            continue
        near = difflib.get_close_matches(name, known, n=1)
        meant = f" did you mean {near[0]!r}?" if near else " make it, unless the brokers do so."
        texts.append(
            f"the brokers show no topic {name!r}, which is {flag}, to this user:{meant}"
            + (" It is waited for." if flag == "the source" else "")
        )
    return texts
