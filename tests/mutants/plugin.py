"""A pytest plugin that mutates batchpool in the process of the tests.

MUTANT in the environment is the name of the mutation. It must be loaded by `-p`, before any
conftest imports batchpool.
"""

from __future__ import annotations

import os

from tests.mutants.importer import SourceImporter
from tests.mutants.mutant import read_list

ENV = "BATCHPOOL_TESTS_MUTANT"

if ENV in os.environ:
    name, _, number = os.environ[ENV].partition(" ")
    mutant = read_list(name)[int(number) - 1]
    SourceImporter(mutant.module, mutant.source()).install()
