"""Every route answers what /openapi.json says of it: statuses, media types, schemas, verbs.

schemathesis makes requests that fit the schemas and requests that do not. That those that fit are
all accepted is not asked: a schema cannot say that `data` has as many values as `shape`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.process.pool_under_test import serving

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
WORDS = "tests.process.text_models:Words"


@pytest.mark.parametrize("examples", [3, pytest.param(60, marks=pytest.mark.long)])
def test_the_answers_are_those_that_the_description_tells(tmp_path: Path, examples: int) -> None:
    with serving("Affine", "Scaled", "tests.process.tensor_models:Boxes", WORDS) as pool:
        command = [
            sys.executable, "-c", "from schemathesis.cli import schemathesis; schemathesis()",
            f"--config-file={HERE / 'schemathesis.toml'}", "run",
            f"http://127.0.0.1:{pool.port}/openapi.json",
            f"--max-examples={examples}", "--seed=1", "--phases=examples,coverage,fuzzing",
            "--exclude-checks=positive_data_acceptance", "--no-color",
        ]  # fmt: skip
        environment = os.environ | {
            "SCHEMATHESIS_HOOKS": "tests.process.openapi.hooks",
            "PYTHONPATH": str(ROOT),
        }
        found = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert found.returncode == 0, found.stdout[-6000:] + found.stderr[-2000:]
        assert "Tested:" in found.stdout
