"""One hostile process: it does its kind of mischief again and again until its input ends.

    python -m bench.hostile.stranger KIND WHERE MODEL [UID]

KIND is one of LOCAL_KINDS, with the control socket as WHERE, or of HTTP_KINDS and STORE_KINDS, with
the port. It
prints a line when it begins and one after each of its first rounds, since who watches it has to
wait for what it does and not for a time. At the end it prints the number of its rounds and the
refusals that it met. Each line is JSON. Status 3: the pool let it do what it must not be able to
do.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
from collections import Counter
from collections.abc import Sequence

from batchpool.core.errors import PoolError
from bench.hostile.control import stand_last
from bench.hostile.http_kinds import HTTP_KINDS
from bench.hostile.kind import NotStopped
from bench.hostile.local_kinds import LOCAL_KINDS
from bench.hostile.store_kinds import STORE_KINDS

NOT_STOPPED = 3
ROUNDS_TOLD = 5
_PAUSE_S = 0.05  # after a refusal, as whoever is not stupid waits


def main(argv: Sequence[str]) -> int:
    """Run one kind until the standard input ends; returns the exit status."""
    kind, where, model, *uid = argv
    act = {**LOCAL_KINDS, **HTTP_KINDS, **STORE_KINDS}[kind]
    if uid:  # only now, for the interpreter's files may be readable for root alone
        os.setgroups([])
        os.setgid(int(uid[0]))
        os.setuid(int(uid[0]))
    rounds, refusals = 0, Counter[str]()
    status = 0
    print(json.dumps("begins"), flush=True)
    stand_last()
    while not select.select([sys.stdin], [], [], 0)[0]:
        try:
            act(where, model)
        except NotStopped as exc:
            refusals[str(exc)] += 1
            status = NOT_STOPPED
        except (PoolError, OSError, ValueError) as exc:
            refusals[f"{type(exc).__name__}: {exc}"[:90]] += 1
            time.sleep(_PAUSE_S)
        rounds += 1
        if rounds <= ROUNDS_TOLD:
            print(json.dumps(rounds), flush=True)
    print(json.dumps({"kind": kind, "rounds": rounds, "refusals": refusals.most_common(5)}))
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
