"""Local clients of a pool: bp.Client, bp.AsyncClient, and what the HTTP front ends share with them.

Reading order: lane_client.py (claim, submit, reap, expire on one lane), lane_set.py,
backpressure.py, session.py (attaching, lanes, facts), call.py and chunks.py (one call's arguments
and windows), infer.py (the window loop). Threads: reaper.py, futures.py, sync_driver.py, sync.py.
Event loops: loop.py, reply.py, aio_driver.py, aio.py. control.py asks for the command line.
"""
