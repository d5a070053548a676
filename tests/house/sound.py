"""A small house in which all rules hold, and the ways to break each of them."""

from __future__ import annotations

from dataclasses import dataclass

from tests.house.sizes import LONGEST_FILE, MOST_METHODS

SOUND = {
    "batchpool/__init__.py": '"""A library."""\n',
    "batchpool/core/errors.py": '''"""Errors."""


class PoolError(Exception):
    """`PoolError.code` is its name for programs."""

    code = "pool_error"
''',
    "batchpool/core/text/escape.py": '''"""See core/errors.py, `batchpool.core.errors`."""

import re

from batchpool.core.errors import PoolError


def escape(text: str) -> str:
    """Raises `PoolError` where `text` is empty; `batchpool.toml` is a file and no module."""
    if not text:
        raise PoolError
    return re.sub("x", "y", text)
''',
    "batchpool/wire/codec.py": '''"""Reads requests."""

from batchpool.core.text import escape


class Codec:
    """Parses requests: `Codec.parse(text)`."""

    def parse(self, text: str) -> object:
        # `escape` is pure, core/text/escape.py.
        return getattr(self, escape.escape(text)), {"worker": 1, "rows": 2}
''',
    "batchpool/worker/process.py": '"""The worker."""\n\nfrom batchpool.wire import codec\n',
    "batchpool/worker/backends/cpu.py": '"""Runs models."""\n\nimport torch\n',
    "batchpool/supervisor/supervisor.py": '"""Starts processes."""\n\nimport os\n',
    "batchpool/frontend/server.py": '"""Serves HTTP."""\n\nimport uvicorn\n',
    "batchpool/examples/affine.py": '"""A model."""\n\nimport batchpool\n',
    "tests/unit/test_codec.py": "def test_handler_of_data() -> None: ...\n",
    "bench/pool.py": '"""Measures: `python -m bench.pool`."""\n',
}


@dataclass(frozen=True)
class Break:
    """Files added to the sound house or put in the place of its own, and the offences that the
    rule then finds, of each a part."""

    rule: str
    files: dict[str, str]
    offences: tuple[str, ...]


def broken(rule: str, path: str, text: str, *offences: str) -> Break:
    return Break(rule, {path: text}, offences)


def class_of(methods: int, above: str = "") -> str:
    lines = (f"    def f{i}(self): ...\n" for i in range(methods))
    return f"{above}@final\nclass Large:\n{''.join(lines)}"


CORE = "batchpool/core/text/escape.py"
CODEC = "batchpool/wire/codec.py"
WORKER = "batchpool/worker/process.py"
SUPERVISOR = "batchpool/supervisor/supervisor.py"

IMPORTS = [
    broken("files_without_a_floor", "batchpool/attic/box.py", "", "attic/box.py:1: no floor"),
    broken(
        "upward_imports",
        CORE,
        "def f():\n    import batchpool.wire.codec\n",
        ":2: core/text imports batchpool/wire/codec.py of wire",
    ),
    broken(
        "upward_imports",
        "batchpool/core/errors.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .text import escape\n",
        ":3: core/errors imports batchpool/core/text/escape.py of core/text",
    ),
    Break(
        "upward_imports",
        {
            "batchpool/shm/lane.py": "try:\n    from .stats import counters\nfinally: 0",
            "batchpool/shm/stats/counters.py": "",
        },
        ("lane.py:2: shm imports",),
    ),
    broken(
        "imports_of_nothing", CORE, "import batchpool.core.attic", "no module batchpool.core.attic"
    ),
    broken(
        "imports_of_nothing",
        "bench/pool.py",
        "from batchpool.wire.attic import Box",
        ":1: no module batchpool.wire.attic.Box",
    ),
    Break(
        "circles_of_files",
        {
            "batchpool/wire/a.py": "from batchpool.wire import b",
            "batchpool/wire/b.py": "def f():\n    from batchpool.wire.c import x",
            "batchpool/wire/c.py": (
                "from typing import TYPE_CHECKING\n"
                "if TYPE_CHECKING:\n    from batchpool.wire.a import y"
            ),
        },
        ("batchpool/wire/a.py, batchpool/wire/b.py, batchpool/wire/c.py",),
    ),
    Break(
        "circles_of_packages",
        {
            "batchpool/shm/a.py": "import batchpool.shm.stats.b",
            "batchpool/shm/c.py": "",
            "batchpool/shm/stats/b.py": "def f():\n    import batchpool.shm.c",
        },
        ("shm, shm/stats",),
    ),
    broken(
        "processes_that_import_each_other",
        SUPERVISOR,
        "def f():\n    from batchpool.worker import process",
        ":2: supervisor imports batchpool/worker/process.py",
    ),
    broken(
        "examples_of_inner_names",
        "batchpool/examples/affine.py",
        "from batchpool.wire.codec import Codec",
        "imports batchpool/wire/codec.py",
    ),
    broken("impurities_of_core", CORE, "import time", ":1: imports time"),
    broken("impurities_of_core", CORE, "def f():\n    import torch", ":2: imports torch"),
    broken("impurities_of_core", CORE, "from os import environ", "imports os.environ"),
    broken("impurities_of_core", CORE, 'x = __import__("torch")', "__import__"),
    broken("impurities_of_core", CORE, "import importlib.util", "imports importlib.util"),
    broken("impurities_of_core", CORE, "import sys\nx = sys.modules", ":2: sys.modules"),
    broken("impurities_of_core", CORE, 'x = open("f").read()', "open"),
    broken("impurities_of_core", CORE, "print(1)\ninput()", ":1: print", ":2: input"),
    broken("http_below_the_frontend", CODEC, "import uvicorn.config", "imports uvicorn.config"),
    broken("torch_outside_of_models", CODEC, "def f():\n    import torch", ":2: imports torch"),
    broken("pickles", WORKER, "import pickle", "imports pickle"),
]

SIZES = [
    broken("long_files", "bench/pool.py", "x = 1\n" * (LONGEST_FILE + 1), "bench/pool.py: "),
    broken("large_classes", CODEC, class_of(MOST_METHODS + 1), ":2: Large has 21 methods"),
    broken("large_classes", CODEC, class_of(21, "# methods: \n"), "Large has 21 methods"),
    broken("large_classes", CODEC, class_of(21, "# methods: a b c\n\n"), "Large has 21 methods"),
]

NAMES = [
    broken("vague_names", CODEC, "class LaneManager: ...", ":1: LaneManager"),
    broken("vague_names", "bench/helpers.py", "", ":1: helpers"),
    broken("vague_names", "tests/unit/test_codec.py", "def some_info(): ...", ":1: some_info"),
]

TEXTS = [
    broken("docstrings_that_ask", CODEC, 'class A:\n    """Whether it is."""', ":2: Whether it is"),
    broken("docstrings_that_ask", CODEC, '"""\nHow it goes.\n"""', "How it goes."),
    broken("docstrings_that_ask", "bench/pool.py", '"""The same for two."""', "The same for two."),
    broken("names_that_do_not_exist", CORE, '"""See wire/attic.py."""', ":1: wire/attic.py"),
    broken("names_that_do_not_exist", CORE, "x = 1  # see `attic.py`", ":1: attic.py"),
    broken("names_that_do_not_exist", CORE, "x = 1  # see attic.py:start", ":1: attic.py"),
    broken("names_that_do_not_exist", CORE, '"""`batchpool.wire.attic`"""', "wire.attic"),
    broken("names_that_do_not_exist", CORE, '"""`python -m batchpool.attic`"""', "batchpool.attic"),
    broken("names_that_do_not_exist", CORE, '"""`wire.codec.Box`"""', "wire.codec.Box"),
    broken("names_that_do_not_exist", CORE, '"""`Codec.encode`"""', "Codec.encode"),
    broken("names_that_do_not_exist", CORE, '"""``Box``"""', "Box"),
    broken("names_that_do_not_exist", CORE, "# one\n# `open_box()`", ":1: open_box"),
]

REGISTRIES = [
    broken("compared_texts", CODEC, 'x = role == "worker"', ":1: compares 'worker'"),
    broken("compared_texts", CODEC, 'x = f in ("torch", "other")', ":1: compares 'torch'"),
    broken("compared_texts", CODEC, 'x = role != "batcher"', ":1: compares 'batcher'"),
    broken("compared_texts", CODEC, 'x = name.startswith("frontend")', ":1: compares 'frontend'"),
    broken("compared_texts", CODEC, "x = b'text/html' in accept", ":1: compares 'text/html'"),
    broken("compared_texts", CODEC, "x = {'application/json': 1, y: 2}", "'application/json'"),
    broken("compared_texts", CODEC, "x = {'numpy': 1, 'torch': 2}", "'numpy'", "'torch'"),
    broken("compared_texts", CODEC, 'match x:\n    case "numpy": ...', ":2: compares 'numpy'"),
    broken("compared_texts", CODEC, 'match x:\n    case "numpy" | 1: ...', ":2: compares 'numpy'"),
    broken(
        "untyped_messages", WORKER, 'send({"op": "ready"})', ':1: a message as a dict with "op"'
    ),
    broken("untyped_messages", WORKER, 'x = dict(op="ready")', ":1: a message"),
    broken("untyped_messages", WORKER, 'x = message["op"]', ":1: a message"),
    broken("untyped_messages", WORKER, 'x = message.get("op", 0)', ":1: a message"),
    broken("built_attribute_names", WORKER, 'getattr(self, f"_on_{op}")()', ":1: getattr(self"),
    broken("built_attribute_names", WORKER, 'setattr(x, "on" + op, 1)', ":1: setattr(x"),
    broken("built_attribute_names", WORKER, 'getattr(x, "on_%s" % op)', ":1: getattr(x"),
    broken("built_attribute_names", WORKER, 'getattr(x, "{}".format(op))', ":1: getattr(x"),
    broken("built_attribute_names", WORKER, 'methodcaller(f"on_{op}")', ":1: methodcaller"),
]

BREAKS = [*IMPORTS, *SIZES, *NAMES, *TEXTS, *REGISTRIES]
