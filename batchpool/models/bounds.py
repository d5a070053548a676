"""Bounds of the options of ready models, which are told before a model is loaded."""

from __future__ import annotations

from typing import Annotated

import msgspec

AtLeastZero = Annotated[int, msgspec.Meta(ge=0)]
AtLeastOne = Annotated[int, msgspec.Meta(ge=1)]
