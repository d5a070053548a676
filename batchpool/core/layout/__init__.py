"""The contents of shared memory: byte layouts, slot states, slot allocation.

In reading order:

    segments   the byte layout of every segment and the writer of every word
    states     SlotState, LaneGate, PoolState: state machines and their owners
    admission  SlotAllocator: the free slots of a lane, admission and fair shares
"""
