"""Dynamic dimensions of a row."""

from __future__ import annotations

from dataclasses import dataclass

from batchpool.core.errors import ConfigError


@dataclass(frozen=True)
class Dim:
    """A dynamic dimension of a row: `min` to `max` elements; rows of one request may differ.

    Dimensions of one model with one `name` have one size in a row: an output's dimension is cut
    to the size of the input's dimension of that name.  min: of an input's rows, shorter ones of
    which are refused; None for 1 in a generator's prompt and 0 elsewhere.
    """

    max: int
    name: str = ""
    min: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.max, int) or self.max < 1:
            raise ConfigError(f"Dim(max={self.max!r}): max must be a whole number of at least 1")
        if self.min is not None and (type(self.min) is not int or not 0 <= self.min <= self.max):
            raise ConfigError(
                f"Dim(max={self.max}, min={self.min!r}): min must be a whole number from 0 to"
                f" {self.max}"
            )

    @property
    def least(self) -> int:
        """The fewest elements; 0 where `min` is None."""
        return self.min or 0
