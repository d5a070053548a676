"""The supervisor process: plans, starts, watches and replaces all others."""
