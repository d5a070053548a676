"""Text for people: escaping of untrusted text, limits on repeated log lines."""
