"""The configuration: one schema, and the forms in which it is read and described.

In reading order:

    schema      ServerConfig and ModelConfig: every key with its default, range and help
    toml_file   load_toml: the configuration of a TOML text
    flags       command-line flags for every key
    options     what `--option` gives; ready_models: what `--model onnx:PATH` stands for
    paths       the socket path and the state directory where they are not configured
    describe    values and defaults of keys as text
"""
