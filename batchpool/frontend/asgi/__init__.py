"""The Starlette application, for every other request."""
