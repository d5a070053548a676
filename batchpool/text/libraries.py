"""The libraries of the extra `text`, which only a pool with such generators needs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from batchpool.core.errors import ConfigError


@contextmanager
def text_libraries() -> Iterator[None]:
    """For the imports of the extra: ConfigError where a library is missing, with its name and how
    to install it."""
    try:
        yield
    except ModuleNotFoundError as exc:
        raise ConfigError(
            f"a generator with a text (bp.Text) needs the package {exc.name}, which is not"
            " installed: pip install 'batchpool[text]'"
        ) from exc
