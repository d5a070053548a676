"""Rows as columns of Apache Arrow: of request bodies, and of the files of bulk runs.

types.py (a tensor's column, and pyarrow itself, which is an extra), columns_in.py, columns_out.py.
"""
