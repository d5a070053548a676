"""The Starlette application, for every request that the fast path does not take."""
