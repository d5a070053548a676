"""House rules about dispatch: by registry, by type and by attribute, never by comparing text."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from tests.house.tree import Source, Tree, said

# Frameworks, process roles and media types: each is compared by one registry.
REGISTERED = {"torch", "numpy", "worker", "batcher", "supervisor", "frontend"}
MEDIA_TYPE = re.compile(r"(?:application|text|image|multipart)/[\w.+*-]+(?:;.*)?")

# The comparisons that are none of a registry's, or are the registry, each with its reason.
COMPARING = {
    ("batchpool/worker/backends/select.py", "numpy"): "the backend of each framework",
    ("batchpool/worker/backends/select.py", "torch"): "the backend of each framework",
    ("batchpool/frontend/dashboard/routes.py", "text/html"): "a browser asks for the page",
    (
        "batchpool/wire/openapi_routes.py",
        "text/plain",
    ): "of /metrics, which is no wire form",
    (
        "batchpool/frontend/http/upload_form.py",
        "multipart/form-data",
    ): "an upload, which is no wire form of a request",
    ("batchpool/frontend/http/authorization.py", "text/html"): "a browser asks for a password",
}

ATTRIBUTE_CALLS = {"getattr", "setattr", "hasattr", "delattr", "attrgetter", "methodcaller"}
TEXT_TESTS = {"startswith", "endswith", "removeprefix", "removesuffix", "index", "find", "count"}


def compared_texts(tree: Tree) -> list[str]:
    """No file but a registry compares a framework, a role or a media type as text."""
    return [
        said(source, node.lineno, f"compares {text!r}")
        for source in tree.package
        for node in compared(source)
        if (text := registered(node)) is not None and (source.path, text) not in COMPARING
    ]


def comparisons_that_are_gone(tree: Tree) -> list[str]:
    """A comparison that is allowed is still made."""
    made = {(source.path, registered(node)) for source in tree.package for node in compared(source)}
    return [f"{path}: {text!r}" for path, text in COMPARING if (path, text) not in made]


def registered(node: ast.Constant) -> str | None:
    """The text of a constant that belongs to a registry; None for any other constant."""
    value = node.value.decode("latin-1") if isinstance(node.value, bytes) else node.value
    if isinstance(value, str) and (value in REGISTERED or MEDIA_TYPE.fullmatch(value)):
        return value
    return None


def is_table(keys: Sequence[ast.expr | None]) -> bool:
    """A dict by media type, or by nothing but frameworks or roles; else it is a record whose
    fields are called so."""
    found = [registered(key) for key in keys if isinstance(key, ast.Constant)]
    by_media_type = any(text is not None and "/" in text for text in found)
    return by_media_type or (len(found) == len(keys) and None not in found)


def compared(source: Source) -> Iterator[ast.Constant]:
    """Constants that decide something: in comparisons, cases, keys and tests of a text's ends."""
    for node in source.nodes:
        match node:
            case ast.Compare():
                parts: list[ast.expr | None] = [node.left, *node.comparators]
            case ast.MatchValue(value=value):
                parts = [value]
            case ast.Call(func=ast.Attribute(attr=attr), args=args) if attr in TEXT_TESTS:
                parts = [*args]
            case ast.Dict(keys=keys) if is_table(keys):
                parts = keys
            case _:
                continue
        for part in parts:
            if part is not None:
                yield from constants(part)


def constants(part: ast.expr) -> Iterator[ast.Constant]:
    """The constant itself, or those of a literal tuple, list or set."""
    if isinstance(part, ast.Constant):
        yield part
    elif isinstance(part, ast.Tuple | ast.List | ast.Set):
        for element in part.elts:
            yield from constants(element)


def untyped_messages(tree: Tree) -> list[str]:
    """A control message is a struct: no dict has a key "op", and nobody looks for one."""
    return [
        said(source, node.lineno, 'a message as a dict with "op"')
        for source in tree.package
        for node in source.nodes
        if isinstance(node, ast.expr) and has_op(node)
    ]


def has_op(node: ast.expr) -> bool:
    match node:
        case ast.Dict(keys=keys):
            return any(isinstance(key, ast.Constant) and key.value == "op" for key in keys)
        case ast.Subscript(slice=ast.Constant(value="op")):
            return True
        case ast.Call(func=ast.Attribute(attr="get" | "pop"), args=[ast.Constant(value="op"), *_]):
            return True
        case ast.Call(func=ast.Name(id="dict"), keywords=keywords):
            return any(keyword.arg == "op" for keyword in keywords)
    return False


def built_attribute_names(tree: Tree) -> list[str]:
    """An attribute's name is not put together from pieces of text."""
    return [
        said(source, node.lineno, ast.unparse(node))
        for source in tree.sources.values()
        for node in source.nodes
        if isinstance(node, ast.Call)
        and called(node) in ATTRIBUTE_CALLS
        and any(is_built(part) for part in node.args[:2])
    ]


def called(node: ast.Call) -> str:
    return ast.unparse(node.func).rpartition(".")[2]


def is_built(node: ast.expr) -> bool:
    """An f-string, a sum or a product of texts, or a call of str.format or str.join."""
    match node:
        case ast.JoinedStr() | ast.BinOp(op=ast.Add() | ast.Mod()):
            return True
        case ast.Call():
            return called(node) in ("format", "join")
    return False
