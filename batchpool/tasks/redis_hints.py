"""Advice behind errors of the library that do not say what to do."""

from __future__ import annotations

from batchpool.tasks.redis_address import PASSWORD_VARIABLE, StoreAddress
from batchpool.tasks.redis_clients import redis

_PASSWORD = (
    f"; the user stands in tasks_store, the password in tasks_store_password_file or"
    f" {PASSWORD_VARIABLE}"
)
_NO_SERVER = "; what listens there speaks another protocol than Redis"
_NO_TLS = "; the address says TLS: does the server speak it at this port?"
_TLS = "; the server may speak TLS at this port, which rediss:// asks for"
_RIGHTS = "; the documentation of tasks lists the rights that the user needs (ACL SETUSER)"


def advice(exc: BaseException, address: StoreAddress) -> str:
    """A likely cause of this error, to be written after it; "" for one that speaks for itself."""
    errors = redis.exceptions
    text = str(exc)
    if isinstance(exc, errors.AuthenticationError | errors.AuthenticationWrongNumberOfArgsError):
        return _PASSWORD
    if isinstance(exc, errors.NoPermissionError) or text.startswith("NOPERM"):
        return _RIGHTS
    if isinstance(exc, errors.InvalidResponse) or "Protocol error" in text:
        return _NO_SERVER
    if isinstance(exc, errors.TimeoutError) and address.is_tls and "connecting" in text:
        return _NO_TLS
    if isinstance(exc, errors.ConnectionError) and not address.is_tls and "closed by" in text:
        return _TLS
    return ""
