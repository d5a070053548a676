"""Batching policies in a real pool, with processes, sockets and a clock.

    python -m bench.policy_pool all --out FOLDER          # 8 minutes on 16 quiet cores with a GPU
    python -m bench.policy_pool waits target --out FOLDER
    python -m bench.policy_pool all --times 0.1 --out FOLDER   # does it run? figures mean nothing

Parts, in the order in which `all` runs them:

    engine-http       an engine that takes 64 rows only, 12,000 rows/s; 10,000 requests/s, then
                      30,000 for two seconds, then 10,000 again; over HTTP
    engine-local      the same through four local clients
    engine-two-cores  the same, pool and clients on two cores
    waits             20 ms + 0.2 ms a row at 5, 50, 95 and 110 % of its capacity, Poisson and on
                      and off: the adaptive policy beside fixed waits of 0, 5, 20 and 50 ms
    target            the same model with a target of 98 ms at 5 to 200 %, and the best that
                      fixed waits and batches can do
    fairness          one caller with 10,000 rows queued and its effect on others, over both ways
    one-by-one        1,000 HTTP requests a second, batched and one by one
    gain-mlp          rows per second at a largest batch of 1, 8, 32 and 64, on the GPU
    gain-minilm       the same of a text encoder on the CPU

Device time is slept, not worked, except in the last two. Requests leave at their intended times,
from which latencies count; where the senders were late the figures are INVALID, and a verdict
says so. Every part is a process of its own that saves FOLDER/policy_pool_PART.json as it goes,
with the machine, the versions and its command; one that fails or takes too long keeps none of the
others from running. The exit status is 1 if a part failed or a verdict does not hold.
"""
