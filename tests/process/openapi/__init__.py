"""The API as it describes itself, tried by schemathesis."""
