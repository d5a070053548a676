"""What every child process of the pool does first."""
