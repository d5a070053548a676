"""The configuration: its schema, and what is derived from it (TOML file, flags, descriptions)."""
