"""The control socket between the supervisor and every other process."""
