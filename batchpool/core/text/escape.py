"""Text of strangers, made safe to show: a name or an error may hold anything.

What a terminal or a reader of lines would act on is shown as an escape: control characters
(C0 and C1, so also ESC), line and paragraph separators, marks that turn the direction of text,
halves of surrogate pairs. What can be read stays as it is.
"""

from __future__ import annotations


def printable(text: str) -> str:
    """The text on one line, without anything that acts on a terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def cut(text: str, most: int) -> str:
    """At most about `most` characters: of a longer text its beginning and, longer, its end."""
    if len(text) <= most:
        return text
    head = most // 3
    tail = most - head
    return f"{text[:head]} [{len(text) - most} characters left out] {text[-tail:]}"
