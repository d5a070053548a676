"""A topic that the brokers do not show is told at the start, with what was probably meant."""

from __future__ import annotations

from batchpool.consume.known_topics import missing_texts


def test_topics_that_are_there_are_no_texts() -> None:
    assert missing_texts([("the source", "texts"), ("--to", "done")], {"texts", "done"}) == []


def test_each_topic_that_is_not_there_is_named_with_its_flag() -> None:
    named = [("the source", "text"), ("--to", "vectors")]
    source, target = missing_texts(named, {"texts", "other"})
    assert source.startswith("the brokers show no topic 'text', which is the source, to this user")
    assert source.endswith("did you mean 'texts'? It is waited for.")
    assert "'vectors', which is --to" in target
    assert target.endswith("make it, unless the brokers do so.")
