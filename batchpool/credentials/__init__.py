"""Keys of callers and certificates of the server, as they lie in files."""
