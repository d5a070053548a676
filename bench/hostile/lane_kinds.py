"""Local clients that misuse their lane's memory."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import random
import threading
import time
from collections.abc import Callable

from batchpool.core.layout.segments import HEAD_FIELDS
from batchpool.core.layout.states import SlotState
from bench.hostile.kind import LARGEST, ROUND_S, Kind, NotStopped, intruding, until_s

_HEAD_WORDS = len(HEAD_FIELDS)
_PUNCH = 0x02 | 0x01  # FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE


def submits_stale_entries(path: str, model: str) -> None:
    """Fills its ring with entries that name no submitted row, and rings."""
    with intruding(path, model) as intruder:
        producer = intruder.lane_client.lane.sq_producer()
        end_s = until_s()
        while time.monotonic() < end_s:
            room = min(producer.room(), 64)
            if room > 0:
                producer.push_few([1 << 32] * room)
            intruder.ring()


def submits_impossible_entries(path: str, model: str) -> None:
    """Submits a slot that there is not, with rows under way."""
    with intruding(path, model) as intruder:
        intruder.submit(4)
        intruder.lane_client.lane.sq_producer().push_few([intruder.lane_client.lane.slots + 5])
        intruder.ring()
        time.sleep(ROUND_S / 4)


def scribbles(path: str, model: str) -> None:
    """Writes random words anywhere behind the head, with rows under way."""
    dice = random.Random()
    with intruding(path, model) as intruder:
        words = intruder.words()
        end_s = until_s()
        while time.monotonic() < end_s and not intruder.is_dropped():
            intruder.submit(4)
            for _ in range(50):
                at = dice.randrange(_HEAD_WORDS, min(len(words), 1 << dice.choice([9, 11, 14])))
                words[at] = dice.choice([0, 1, LARGEST, 2**63, dice.getrandbits(64)])
            intruder.ring()
            time.sleep(0.005)


def writes_the_largest_words(path: str, model: str) -> None:
    """Keeps every word of the lane at its largest value, with rows under way."""
    with intruding(path, model) as intruder:
        words = intruder.words()
        end_s = until_s()
        while time.monotonic() < end_s:
            intruder.submit(4)
            for name, at in intruder.layout.words.items():
                if name not in ("sq_tail", "sq_head"):
                    words[at // 8] = LARGEST
            intruder.ring()
            time.sleep(0.002)


def turns_counters_back_and_forth(path: str, model: str) -> None:
    """Changes the completion queue's head all the time, with rows under way."""
    with intruding(path, model) as intruder:
        words, at = intruder.words(), intruder.layout.words["cq_head"] // 8
        over = threading.Event()

        def turn() -> None:
            while not over.is_set():
                for value in (0, LARGEST, 2**63, 5):
                    words[at] = value

        thread = threading.Thread(target=turn)
        thread.start()
        try:
            end_s = until_s()
            while time.monotonic() < end_s:
                intruder.submit(2)
                time.sleep(0.002)
        finally:
            over.set()
            thread.join()


def lies_in_headers(path: str, model: str) -> None:
    """Submits rows whose times, priorities and sizes are what no right client writes."""
    dice = random.Random()
    with intruding(path, model) as intruder:
        lane, client = intruder.lane_client.lane, intruder.lane_client
        end_s = until_s()
        while time.monotonic() < end_s and client.may_claim(1, 0):
            now_ns = time.monotonic_ns()
            client.submit(intruder.rows, now_ns, now_ns + 10**9)
            for column in (lane.submit_ns, lane.deadline_ns):
                column[:] = dice.choice([0, -(2**63), 2**63 - 1, now_ns, now_ns + 10**8])
            for column in (lane.priority, lane.flow, lane.attempt, lane.input_sizes):
                column[:] = dice.choice([0, 1, 2**31, 2**32 - 1])
            client.flush()
            intruder.ring()
            time.sleep(0.002)
            intruder.reap()


def changes_states(path: str, model: str) -> None:
    """Sets the states and sequences of its slots to anything, with rows under way."""
    dice = random.Random()
    with intruding(path, model) as intruder:
        lane = intruder.lane_client.lane
        end_s = until_s()
        while time.monotonic() < end_s:
            intruder.submit(8)
            for _ in range(20):
                lane.state[dice.randrange(lane.slots)] = dice.choice([*SlotState, 2**32 - 1])
                lane.sequence[dice.randrange(lane.slots)] = dice.getrandbits(32)
            time.sleep(0.002)


def punches_holes(path: str, model: str) -> None:
    """Takes the lane's pages away under the pool, again and again."""
    libc = ctypes.CDLL(None, use_errno=True)
    with intruding(path, model) as intruder:
        size = intruder.layout.total_bytes
        end_s = until_s()
        while time.monotonic() < end_s:
            intruder.submit(1)
            for _ in range(20):
                libc.fallocate(
                    intruder.lane_fd, _PUNCH, ctypes.c_long(mmap.PAGESIZE), ctypes.c_long(size)
                )
            intruder.ring()


def destroys_the_head(path: str, model: str) -> None:
    """Overwrites the head, by which the lane is checked before it is mapped."""
    with intruding(path, model) as intruder:
        intruder.submit(4)
        intruder.memory[: 8 * _HEAD_WORDS] = bytes(8 * _HEAD_WORDS)
        intruder.submit(4)
        time.sleep(ROUND_S)


def never_reaps(path: str, model: str) -> None:
    """Fills its lane and takes no answer."""
    with intruding(path, model) as intruder:
        intruder.submit(intruder.lane_client.lane.slots)
        time.sleep(ROUND_S)


def resizes_its_segments(path: str, model: str) -> None:
    """Tries to truncate, grow and seal what it was given, and to write what is read-only."""
    with intruding(path, model) as intruder:
        lane, page = intruder.lane_fd, intruder.state_page_fd
        tries: list[Callable[[], object]] = [
            lambda: os.ftruncate(lane, 0),
            lambda: os.ftruncate(lane, 1 << 30),
            lambda: fcntl.fcntl(lane, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE),
            lambda: os.ftruncate(page, 0),
            lambda: os.pwrite(page, b"x", 0),
            lambda: mmap.mmap(page, mmap.PAGESIZE),
        ]
        for number, attempt in enumerate(tries):
            try:
                attempt()
            except OSError:
                continue
            raise NotStopped(f"try {number} was not refused")
        time.sleep(ROUND_S / 4)


def submits_again_and_again(path: str, model: str) -> None:
    """Sets its slots back to SUBMITTED once they are admitted, and queues the same entries."""
    with intruding(path, model) as intruder:
        lane = intruder.lane_client.lane
        slots = range(lane.slots)
        ring = lane.sq_producer()
        lane.sequence[:] = 1
        end_s = until_s()
        while time.monotonic() < end_s and not intruder.is_dropped():
            lane.state[:] = int(SlotState.SUBMITTED)
            try:
                ring.push_few([int(slot) | 1 << 32 for slot in slots])
            except (AssertionError, ValueError):
                time.sleep(0.001)  # the batcher has not taken the last ones
            intruder.ring()


def keeps_its_lanes(path: str, model: str) -> None:
    """Opens lanes and leaves, again and again, and keeps their descriptors."""
    kept = []
    end_s = until_s()
    try:
        while time.monotonic() < end_s:
            with intruding(path, model) as intruder:
                kept.append(os.dup(intruder.lane_fd))
            time.sleep(0.01)
    finally:
        for fd in kept:
            os.close(fd)


LANE_KINDS: tuple[Kind, ...] = (
    submits_stale_entries, submits_impossible_entries, scribbles, writes_the_largest_words,
    turns_counters_back_and_forth, lies_in_headers, changes_states, punches_holes,
    destroys_the_head, never_reaps, resizes_its_segments, submits_again_and_again, keeps_its_lanes,
)  # fmt: skip
