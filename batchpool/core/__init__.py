"""Pure definitions and decisions: standard library and numpy, no clock, no system call, no torch.

Packages, each of which imports only those above it:

    errors, priority, frameworks   error classes, request priorities, frameworks of models
    text                           text for logs: escaping, rate limits, samples
    tensors                        dtypes, tensor specifications, request rows
    layout                         bytes of shared memory, slot states, slot allocation
    config                         the configuration: schema, TOML file, flags, default paths
    scheduler                      the batching decision, queue, estimators, latency target
    metrics                        the table of all metrics, where they are counted, totals
"""
