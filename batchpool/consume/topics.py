"""Topics as the command line names them: kafka://HOST:PORT,HOST:PORT/TOPIC, or kafka:///TOPIC."""

from __future__ import annotations

import re
from dataclasses import dataclass

from batchpool.core.errors import ConfigError

_SCHEME = "kafka://"
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")


@dataclass(frozen=True)
class Topic:
    """A topic. brokers: "host:port", several with commas; "" where it names none."""

    brokers: str
    name: str


def topic_of(text: str, flag: str, brokers: str = "") -> Topic:
    """The topic of a flag's value. brokers: for a topic that names none.

    ConfigError for what is none, or where no broker is known.
    """
    if not text.startswith(_SCHEME):
        raise ConfigError(
            f"{flag} {text!r}: kafka://HOST:PORT/TOPIC was expected, or kafka:///TOPIC for the"
            " brokers of the source"
        )
    own, _, name = text[len(_SCHEME) :].partition("/")
    if not _TOPIC.fullmatch(name) or name in (".", ".."):
        raise ConfigError(
            f"{flag} {text!r}: {name!r} is no name of a topic, which has letters, digits, '.', '_'"
            " and '-', at most 249"
        )
    if not own and not brokers:
        raise ConfigError(f"{flag} {text!r} names no broker: kafka://HOST:PORT/TOPIC was expected")
    return Topic(own or brokers, name)
