"""The line of an error names a place where its reader can do something."""

from __future__ import annotations

import pytest

from batchpool.core.errors import ConfigError
from batchpool.text.libraries import text_libraries
from batchpool.worker.report import one_line


def test_a_missing_extra_has_no_place_in_a_library() -> None:
    with pytest.raises(ConfigError) as caught, text_libraries():
        raise ModuleNotFoundError("No module named 'tokenizers'", name="tokenizers")
    error = caught.value
    assert one_line(error).endswith(f" ({__file__}:13)")  # of whoever called
    assert error.__traceback__ is not None
    by_package = error.with_traceback(error.__traceback__.tb_next)  # without the line of this test
    assert one_line(by_package).endswith("not installed: pip install 'batchpool[text]'")
