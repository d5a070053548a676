"""Mutations of batchpool's source, each with the unit test that must notice it: `make mutants`."""
