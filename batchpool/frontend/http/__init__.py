"""HTTP below the routes: connections, bodies, responses, access log."""
