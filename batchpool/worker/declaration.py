"""Whether the code that a worker has imported declares what the pool serves.

Between the moment when the pool reads what a model is and the one when a worker imports it, the
file may have changed; a worker that is started again imports what is there by then. Rows that
were laid out for other tensors must not reach it.
"""

from __future__ import annotations

from itertools import zip_longest

from batchpool.core.errors import ModelError
from batchpool.core.tensors.spec import ModelSpec


def check_declaration(served: ModelSpec, found: ModelSpec) -> None:
    """ModelError where they differ in a tensor or the framework; it names the first difference."""
    found = ModelSpec.from_wire(found.to_wire())  # as the served one came here
    differences = [("framework", served.framework, found.framework)]
    for kind in ("inputs", "outputs", "parameters"):
        pairs = zip_longest(getattr(served, kind), getattr(found, kind))
        # As text: a pad that is no number is not equal to itself.
        differences += [(kind, repr(was), repr(now)) for was, now in pairs]
    for what, was, now in differences:
        if was != now:
            raise ModelError(
                f"the code on disk declares other tensors than model {served.name!r} as it is"
                f" served: among its {what} {now}; {was} was expected. A reload brings it in"
            )
