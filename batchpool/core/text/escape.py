"""Escaping of untrusted text for logs and terminals.

Names and error texts from outside may hold anything. Characters that act on a terminal or on a
reader of lines are shown as escapes: control characters (C0 and C1, so also ESC), line and
paragraph separators, marks that change the direction of text, and halves of surrogate pairs.
"""

from __future__ import annotations


def printable(text: str) -> str:
    """The text on one line, with every character that is not printable as an escape."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def cut(text: str, most: int) -> str:
    """A text of at most about `most` characters: of a longer one a third from the beginning and
    the rest from the end."""
    if len(text) <= most:
        return text
    head = most // 3
    tail = most - head
    return f"{text[:head]} [{len(text) - most} characters left out] {text[-tail:]}"
