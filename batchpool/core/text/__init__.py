"""Text for logs: escaping of untrusted text, rate limits and samples.

escape       printable and cut: untrusted text on one line, of limited length
log_limits   LogLimiter and TraceSample: repeated messages and sampled requests
"""
