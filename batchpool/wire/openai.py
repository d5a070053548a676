"""OpenAI's API: its paths, its errors, and the objects of its models.

    GET  /v1/models          model_list
    GET  /v1/models/M        model_object
    POST /v1/embeddings      batchpool/wire/embeddings.py
    POST /v1/completions     batchpool/wire/completions.py
    POST /v1/chat/completions    batchpool/wire/chats.py
    /v1/files, /v1/batches   batchpool/wire/batch_lines.py, and the objects in the front end

Every refusal under /v1 is `{"error": {"message", "type", "param", "code"}}`, from which OpenAI's
clients make their exceptions. `code` is the one of core/errors.py; what other refusals say beside
it (`row`, `details`, `retry_after_ms`) stands there too.
https://platform.openai.com/docs/api-reference
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from batchpool.core.errors import InternalError, PoolError

PREFIX = "/v1"
OWNER = "batchpool"
MOST_BODY_BYTES = 8 << 20  # decoding them keeps the interpreter for 15 ms at most
INPUT = "input"  # the request's member that holds the rows


def is_openai_path(path: str) -> bool:
    """True for a path of OpenAI's API, without the prefix under which a proxy shows the server."""
    return path.partition("?")[0].startswith(f"{PREFIX}/")


def error_object(error: PoolError, extra: Mapping[str, Any]) -> dict[str, Any]:
    """The body of a refusal. extra: what it says beside the error's own."""
    facts = {**error.body(), **extra}
    kind = "server_error" if error.status >= InternalError.status else "invalid_request_error"
    return {
        "error": {
            "message": facts.pop("error"),
            "type": kind,
            "param": _member(error),
            "code": facts.pop("code"),
            **facts,
        }
    }


def error_headers(error: PoolError) -> dict[str, str]:
    """The header fields of a refusal; OpenAI's clients read the finer `retry-after-ms` first."""
    retry_after_ms = error.body().get("retry_after_ms")
    more = {} if retry_after_ms is None else {"Retry-After-Ms": str(retry_after_ms)}
    return {**error.headers(), **more}


def _member(error: PoolError) -> str | None:
    """The member of the request that is at fault, as "model" or "input[3]"."""
    return error.param if error.row is None else f"{INPUT}[{error.row}]"


def model_object(name: str, created_s: int) -> dict[str, Any]:
    """One model. created_s: Unix time."""
    return {"id": name, "object": "model", "created": created_s, "owned_by": OWNER}


def model_list(names: Iterable[str], created_s: int) -> dict[str, Any]:
    """All models."""
    return {"object": "list", "data": [model_object(name, created_s) for name in names]}
