"""Models to start from; each can be served as it stands."""
