"""Hostile clients beside honest load: see bench/hostile/__main__.py."""
