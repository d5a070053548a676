"""The worker of a generator: sequences that join, make tokens step by step, and leave."""
