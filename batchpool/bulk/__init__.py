"""Bulk runs: every row of files through a model of a pool, into one file, resumable.

Reading order: plan.py (what a run is asked to do), chunk.py, the readers (lines.py, tables.py,
arrays.py, folders.py, chosen by formats.py), inputs.py (columns to tensors), pipeline.py (chunks
through the pool, in order), parts.py and manifest.py (what is committed), writers.py (a chunk's
outputs, and the parts as one file), progress.py, own_pool.py, run.py (all of it).
"""
