"""Tensors: what models declare and what callers bring.

In reading order:

    dtypes          DType: names, wire names and storage of the dtypes
    spec            Dim, Tensor and ModelSpec: the declaration of a model
    numbers         Python numbers to arrays of a dtype, without silent loss
    strings         strings to object arrays of `bytes`
    packed_strings  PackedStrings: byte strings in one buffer, as Arrow holds them
    arrays          one input's rows as an array of its storage dtype
    ragged          rows of different sizes as one padded array with their sizes, and back
    rows            Rows and check_rows: a request's rows, checked against the declaration
"""
