"""The pool in other frameworks. Each module needs the extra of its name.

pool_calls.py (what a replica of such a framework does with a pool), node_pool.py (the pool of its
machine: one that runs, or one that it starts), ray.py (a deployment of Ray Serve).
"""
