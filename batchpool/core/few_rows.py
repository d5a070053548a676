"""The number of rows up to which work on plain numbers is cheaper than on arrays.

To find where the lane changes among 16 sorted rows takes 1.0 us with plain numbers and 1.4 with
arrays, among 32 rows 1.4 either way.
"""

from __future__ import annotations

from typing import Final

FEW_ROWS: Final = 16

# Up to so many rows lists that C code runs through (sorted, min, ==) are cheaper than as many calls
# of arrays, each of which takes three times as long where other code has run in between.
LISTED_ROWS: Final = 64
