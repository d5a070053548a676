"""The models of a session as endpoints, readiness, metadata and /metrics."""
