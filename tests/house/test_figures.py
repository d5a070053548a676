"""Figures of a small package are those that one counts by hand."""

from __future__ import annotations

from tests.house.figures import figures
from tests.house.tree import Tree


def test_figures_of_a_small_package() -> None:
    found = figures(
        Tree.of(
            {
                "batchpool/__init__.py": '"""A library."""\n',
                "batchpool/shm/a.py": "import batchpool.shm.b\n\n\nclass A:\n    def f(self): 1\n",
                "batchpool/shm/b.py": "def f():\n    import batchpool.shm.a\n\n    return 1\n",
                "batchpool/wire/c.py": "x = 1\n",
                "tests/test_a.py": "import batchpool\n",
            }
        )
    )
    assert found["files"] == "4, 3 without __init__.py"
    assert found["lines"] == "11"
    assert found["lines of a file, median"] == "4"
    assert found["longest file"] == "5 lines, batchpool/shm/a.py"
    assert found["lines of a function, median"] == "2.5, at most 4"
    assert found["largest folder"] == "2 files, batchpool/shm"
    assert found["methods of the largest class"] == "1"
    assert found["circles of files, imports at import time"] == "0"
    assert found["circles of files, all imports"] == "1: batchpool/shm/a.py, batchpool/shm/b.py"
    assert found["circles of packages, all imports"] == "0"
