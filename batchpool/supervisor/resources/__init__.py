"""Resources that the supervisor owns for the pool: segments, sockets, lanes, clients."""
