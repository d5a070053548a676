"""The page's files, served as they lie in the package.

Every file has an ETag and is revalidated each time (`no-cache`), so that an update of batchpool
takes effect at once, and costs a 304 otherwise. The security headers allow nothing but the server's
own files: no inline script or style, no frame around the page, no guessing of types.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib import resources

from batchpool.frontend.http.response import HttpResponse, ok_response

_TYPES = {
    "html": b"text/html; charset=utf-8",
    "css": b"text/css; charset=utf-8",
    "js": b"text/javascript; charset=utf-8",
    "svg": b"image/svg+xml",
}
_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
SECURITY = [
    (b"content-security-policy", _POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
]
_NOT_MODIFIED = 304


def names() -> list[str]:
    """The names of the files that are served."""
    folder = resources.files(__package__)
    return sorted(f.name for f in folder.iterdir() if f.name.rpartition(".")[2] in _TYPES)


def asset(name: str, known: bytes = b"") -> HttpResponse:
    """One file of `names()`. known: the caller's If-None-Match."""
    whole = _whole(name)
    tag = dict(whole.headers)[b"etag"]
    if tag in (part.strip().removeprefix(b"W/") for part in known.split(b",")):
        kept = [field for field in whole.headers if field[0] not in _OF_A_BODY]
        return HttpResponse(_NOT_MODIFIED, kept, b"")
    return whole


_OF_A_BODY = (b"content-type", b"content-length")


@cache
def _whole(name: str) -> HttpResponse:
    body = resources.files(__package__).joinpath(name).read_bytes()
    tag = b'"%s"' % hashlib.sha256(body).hexdigest()[:16].encode()
    fields = [
        (b"content-type", _TYPES[name.rpartition(".")[2]]),
        (b"content-length", b"%d" % len(body)),
        (b"etag", tag),
        (b"cache-control", b"no-cache"),
        *SECURITY,
    ]
    return ok_response(fields, body)
