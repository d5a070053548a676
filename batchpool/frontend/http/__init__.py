"""One HTTP message: connections, request heads and bodies, responses, access log, metrics."""
