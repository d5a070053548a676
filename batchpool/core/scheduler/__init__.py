"""The scheduler of one model: pure functions and classes that decide which rows run when.

In reading order:

    queue           Queue: the waiting rows in the order of service, as int64 columns
    fair_order      FairOrder: sort keys by priority and fair queueing of flows
    limits          Limits and WorkerView: the inputs of the decision
    decision        Decision and Dispatch: what is decided
    decide          decide: batches to dispatch, rows to expire or refuse, next wake-up
    busy_workers    when no row can leave, since all workers are busy
    shares          the rows of each idle worker, of stages on the CPU
    waits           how long rows wait for others
    estimators      ServiceTime and ArrivalEstimator: batch times and arrivals, measured online
    latency_target  batch size limit and early refusal for a 99th percentile target
    size_buckets    SizeBuckets: rows of similar dynamic sizes share batches
    batch_sizes     the allowed batch size for a number of rows
    suspect_rows    SuspectRows: isolation of rows that make batches fail
"""
