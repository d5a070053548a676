"""The metrics of a pool: definitions, places in shared memory, totals.

In reading order:

    table      METRICS: name, kind, unit, help, labels and writer of every metric
    segments   the byte layout of the segments of counters and of the flight recorder
    totals     Totals: the counts of all writers added up, histograms and quantiles
"""
