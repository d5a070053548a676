"""The task process: keeps requests whose answers come later, and runs them as background work."""
