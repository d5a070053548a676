"""Shared memory: segments, the rings and tensor columns in them, and the doorbells beside them.

Reading order: ring.py (all of the memory order), segment.py (create, map, verify), columns.py
(tensors of rows), lane.py (one client and one model), worker_segment.py (the batcher and one
worker), doorbell.py, then pool_state.py, heartbeat.py and stats/. memory_limits.py, cgroups.py and
resource_errors.py check what the machine has before and after.
"""
