"""Example models, each of which can be served unchanged."""
