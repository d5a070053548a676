"""The pool's batching rules inside one process, for programs that need no pool.

A model is a function here: it takes the inputs of one batch, a list in order, and returns one
output for each (function.py says what counts as that).

>>> import batchpool as bp
>>> def double(xs):
...     return [2 * x for x in xs]
>>> bp.batch_inference(double, range(5), batch_size=2)
[0, 2, 4, 6, 8]

By hand, a batch at a time:

>>> batcher = bp.InferenceBatcher(double, max_batch_size=2, max_wait_ms=60_000)
>>> batcher.add_request(1, "a")
>>> batcher.should_process()  # neither full nor old enough
False
>>> batcher.add_request(2, "b")
>>> batcher.add_request(3, "c")
>>> batcher.should_process()
True
>>> batcher.process_batch()
[{'id': 'a', 'output': 2}, {'id': 'b', 'output': 4}]

Or awaited, where calls made at the same time ride together:

>>> import asyncio
>>> async def both():
...     return await asyncio.gather(batcher.predict(10), batcher.predict(20))
>>> asyncio.run(both())
[20, 40]
"""

from batchpool.inprocess.batcher import InferenceBatcher
from batchpool.inprocess.bulk import batch_inference

__all__ = ["InferenceBatcher", "batch_inference"]
