"""Every metric of the pool: the table of definitions, their segments, their totals."""
