"""The ordering rules, each broken by a patch of the package's source in one process.

A mutant replaces text of a module of batchpool as it is imported. The text must stand there
exactly once, so that a mutant follows the code or is noticed. Where a rule is about what the
other side may see meanwhile, the broken order pauses in between, to make the window wide.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from tests.mutants.importer import SourceImporter

ROOT = Path(__file__).parents[2]
PAUSE = "__import__('time').sleep(1e-4)"
DEATH = "__import__('tests.litmus.side_control', fromlist=['die_at']).die_at(20)"
RING = "batchpool.shm.ring"
LANE_CLIENT = "batchpool.client.lane_client"
ADMISSION = "batchpool.batcher.lane"
QUICK_ADMISSION = "batchpool.batcher.quick_admission"


@dataclass(frozen=True)
class Mutant:
    """A patch that breaks one rule.

    rule: the broken rule. side: the role of the process that runs it. seen: the pattern of the
    error that reveals it.
    """

    rule: str
    side: str
    seen: str
    module: str
    changes: tuple[tuple[str, str], ...]

    def source(self) -> str:
        """The source of the patched module."""
        text = ROOT.joinpath(*self.module.split(".")).with_suffix(".py").read_text("utf-8")
        for old, new in self.changes:
            found = text.count(old)
            assert found == 1, f"{self.rule}: the text to change stands {found} times: {old!r}"
            text = text.replace(old, new)
        return text

    def module_object(self) -> ModuleType:
        """The patched module under another name, beside the original."""
        name = f"broken_{self.module.rpartition('.')[2]}"
        broken = ModuleType(name)
        sys.modules[name] = broken  # dataclasses look their module up
        try:
            exec(compile(self.source(), name, "exec"), broken.__dict__)
        finally:
            del sys.modules[name]
        return broken


def install(rule: str) -> None:
    """Break a rule in this process; call it before batchpool is imported."""
    SourceImporter(ALL[rule].module, ALL[rule].source()).install()


# -- the ring -------------------------------------------------------------------------------

_PUSH = """        self._entries[at : at + first] = entries[:first]
        if first < n:
            self._entries[: n - first] = entries[first:]
        self._commit(n)
"""
_PUSH_FEW = """        for i, entry in enumerate(entries):
            self._entries[(tail + i) & mask] = entry
        self._commit(len(entries))
"""
_PEEK = """        at = self._head & self._mask
        if at + n <= self._mask + 1:
"""
_COMMIT = """        self._fence()
        self._tail += n
        self._cells[self._tail_at] = self._tail
"""
_ADVANCE = """        self._head += n
        self._cells[self._head_at] = self._head
"""


def _ring(side: str, rule: str, seen: str, old: str, new: str) -> Mutant:
    return Mutant(rule, side, seen, RING, ((old, new),))


WRONG_ENTRY = (
    "consumer ended with 1: (entry .* was published|\\S*DamagedRing: ring counters disagree)"
)
OVERFLOW = "producer ended with 1: AssertionError: ring overflow"
# Where a counter that is wrong for a moment may meet the check of either side first.
EITHER = f"{WRONG_ENTRY}|{OVERFLOW}"


RING_MUTANTS = [
    _ring(
        "producer",
        "the tail before the entries of a group",
        WRONG_ENTRY,
        _PUSH,
        f"""        self._commit(n)
        {PAUSE}
        self._entries[at : at + first] = entries[:first]
        if first < n:
            self._entries[: n - first] = entries[first:]
""",
    ),
    _ring(
        "producer",
        "the tail before the entries of a few",
        WRONG_ENTRY,
        _PUSH_FEW,
        f"""        self._commit(len(entries))
        {PAUSE}
        for i, entry in enumerate(entries):
            self._entries[(tail + i) & mask] = entry
""",
    ),
    _ring(
        "producer",
        "a group does not wrap around",
        WRONG_ENTRY,
        "            self._entries[: n - first] = entries[first:]\n",
        "            pass\n",
    ),
    _ring(
        "producer",
        "a few do not wrap around",
        "producer ended with 1: IndexError",
        "[(tail + i) & mask]",
        "[tail + i]",
    ),
    _ring(
        "producer",
        "the tail is moved too far",
        EITHER,
        "self._tail += n\n",
        "self._tail += n + 1\n",
    ),
    _ring(
        "producer",
        "entries that wait are overwritten",
        WRONG_ENTRY,
        "        return self._mask + 1 - (self._tail - self._cells[self._head_at])\n",
        "        return self._mask + 1\n",
    ),
    _ring(
        "consumer",
        "the head before its entries are handled",
        EITHER,  # the head goes back when fewer are handled than were seen
        _PEEK,
        f"""        self._cells[self._head_at] = self._head + n
        {PAUSE}
{_PEEK}""",
    ),
    _ring(
        "consumer",
        "what is read after the wrap is one too many",
        WRONG_ENTRY,
        "self._entries[: at + n - self._mask - 1]",
        "self._entries[: at + n - self._mask]",
    ),
    _ring(
        "consumer",
        "the head is moved too far",
        WRONG_ENTRY,
        _ADVANCE,
        _ADVANCE.replace("+= n", "+= n + 1"),
    ),
    _ring(
        "consumer",
        "the head is not moved",
        "no progress for",
        _ADVANCE,
        "        self._head += n\n",
    ),
]

# On x86-64 no run shows a missing fence, or one in a wrong place: see test_store_order.py.
FENCE_MUTANTS = [
    _ring("producer", "no fence", "", _COMMIT, _COMMIT.replace("        self._fence()\n", "", 1)),
    _ring(
        "producer",
        "the fence after the tail",
        "",
        _COMMIT,
        _COMMIT.replace("        self._fence()\n", "", 1) + "        self._fence()\n",
    ),
    _ring("producer", "two fences", "", _COMMIT, "        self._fence()\n" + _COMMIT),
    _ring(
        "producer",
        "the fence of a group before its entries",
        "",
        _PUSH,
        "        self._fence()\n"
        + _PUSH.replace(
            "self._commit(n)", "self._tail += n; self._cells[self._tail_at] = self._tail"
        ),
    ),
    _ring(
        "producer",
        "the fence of a few before the last of them",
        "",
        _PUSH_FEW,
        """        for i, entry in enumerate(entries):
            if i == len(entries) - 1:
                self._fence()
            self._entries[(tail + i) & mask] = entry
        self._tail += len(entries)
        self._cells[self._tail_at] = self._tail
""",
    ),
]

# -- a lane ---------------------------------------------------------------------------------

_STORE = """            self._rows.write(where, rows)
"""
_RETURN = """        self._due_at[first] = deadline_ns
        return pending
"""
_PUBLISH_FIRST = f"""        self._due_at[first] = deadline_ns
        self.flush()
        {PAUSE}
"""
_HEADER = """            self._rows.write_header(slots, where, deadline_ns, now_ns, priority, flow)
"""
_PUSH_DONE = """        try:
            if len(slots) <= self._few_most:
                uses = zip(slots.tolist(), sequences.tolist(), strict=True)
                self._cq.push_few([slot | sequence << 32 for slot, sequence in uses])
            else:
                self._cq.push(pack(slots, sequences))
"""
_RING_CLIENT = """            return
        self.ring_client()
"""
_BY_ARRAYS = "if self._quick is not None:\n            quick =", "if False:\n            quick ="
_CHECK_ONE = "if state[slot] != _SUBMITTED or sequence[slot] != entry >> 32:"
_NO_ENTRY = """        if n == 0:
            return _NO_ROWS
"""

LANE_MUTANTS = [
    Mutant(
        "the entry before its payload",
        "client",
        "does not match its checksum|has the deadline of another request"
        "|client ended with 1: (answers .* to rows|an answer)",
        LANE_CLIENT,
        (
            (_STORE, ""),
            (
                _RETURN,
                _PUBLISH_FIRST
                + """        self._rows.write(where, rows)
        return pending
""",
            ),
        ),
    ),
    Mutant(
        "the entry before its header",
        "client",
        "server ended with 1: slot .* has the deadline of another request",
        LANE_CLIENT,
        (
            (_HEADER, ""),
            (
                _RETURN,
                _PUBLISH_FIRST + _HEADER.removeprefix("    ") + "        return pending\n",
            ),
        ),
    ),
    Mutant(
        "any completion is taken for the slot's present use",
        "client",
        "client ended with 1: answers .* to rows|an answer's|AssertionError",
        LANE_CLIENT,
        (
            (
                "if pending is None or uses[slot] != use or self._state[slot] != _DONE:",
                "if pending is None:",
            ),
        ),
    ),
    Mutant(
        "after a takeover the client does not look at its slots",
        "client",
        "nobody rang",
        LANE_CLIENT,
        (("            self._look_again(finished)\n", "            pass\n"),),
    ),
    Mutant(
        "the completion entry before DONE",
        "server",
        "client ended with 1: a completion was not for any row under way",
        ADMISSION,
        (
            ("        self._set_states(slots, _DONE)\n", ""),
            (
                _PUSH_DONE,
                f"""{_PUSH_DONE}            {PAUSE}
            self._set_states(slots, _DONE)
""",
            ),
        ),
    ),
    Mutant(
        "the bell is not rung",
        "server",
        "nobody rang",
        ADMISSION,
        ((_RING_CLIENT, "            return\n"),),
    ),
    Mutant(
        "an entry is admitted whatever its sequence",
        "server",
        "server ended with 1: use .* was admitted after",
        ADMISSION,
        (
            (
                "(lane.state[slots] == _SUBMITTED) & (lane.sequence[slots] == sequences)",
                "lane.state[slots] == _SUBMITTED",
            ),
            _BY_ARRAYS,
        ),
    ),
    Mutant(
        "an entry is admitted whatever the slot's state",
        "server",
        "server ended with 1: use .* was admitted after",
        ADMISSION,
        (
            (
                "(lane.state[slots] == _SUBMITTED) & (lane.sequence[slots] == sequences)",
                "lane.sequence[slots] == sequences",
            ),
            _BY_ARRAYS,
        ),
    ),
    Mutant(
        "an entry of few or of neighbours is admitted whatever the slot's state",
        "server",
        "server ended with 1: use .* was admitted after",
        QUICK_ADMISSION,
        (
            ("lane.state[here].tobytes() != _RUN_SUBMITTED[: n * _STATE_BYTES]", "first < 0"),
            (_CHECK_ONE, _CHECK_ONE.replace("state[slot] != _SUBMITTED or ", "")),
        ),
    ),
    Mutant(
        "the head before the rows are admitted",
        "server",
        "nobody rang",
        ADMISSION,
        (
            ("        self._sq.advance(n)\n", ""),
            (_NO_ENTRY, f"{_NO_ENTRY}        self._sq.advance(n)\n        {DEATH}\n"),
        ),
    ),
]

# Deaths that do no harm, since the order is right.
SOUND_DEATHS = [
    Mutant(
        "death before the head is moved",
        "server",
        "",
        ADMISSION,
        (("        self._sq.advance(n)\n", f"        {DEATH}\n        self._sq.advance(n)\n"),),
    ),
    Mutant(
        "death between DONE and the completion entry",
        "server",
        "",
        ADMISSION,
        ((_PUSH_DONE, f"        {DEATH}\n{_PUSH_DONE}"),),
    ),
    Mutant(
        "death between the entries and the tail",
        "server",
        "",
        RING,
        ((_COMMIT, f"        {DEATH}\n{_COMMIT}"),),
    ),
]

ALL = {mutant.rule: mutant for mutant in RING_MUTANTS + FENCE_MUTANTS + LANE_MUTANTS + SOUND_DEATHS}
