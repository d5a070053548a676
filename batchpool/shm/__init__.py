"""Shared memory: segments, the rings in them, doorbells, lanes, leases and the control channel.

Reading order: ring (all of the memory order), segment, doorbell, columns, lane, records,
lease, channel.
"""
