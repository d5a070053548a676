"""The client side of a lane: claim, submit, abort, reap."""
