"""OpenAI's objects of files and batches.
https://platform.openai.com/docs/api-reference/files, .../batch
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from batchpool.control.batch_messages import BatchForm, FileForm

WINDOW = "24h"  # the only completion_window
_TIMES = ("in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled")


def file_object(file: FileForm) -> dict[str, Any]:
    """A file."""
    return {
        "id": file.id,
        "object": "file",
        "bytes": file.bytes,
        "created_at": file.created_ms // 1000,
        "expires_at": file.expires_ms // 1000,
        "filename": file.filename,
        "purpose": file.purpose,
        "status": "processed",
        "status_details": None,
    }


def deleted_file(file: FileForm) -> dict[str, Any]:
    """The answer for a file that is gone."""
    return {"id": file.id, "object": "file", "deleted": True}


def batch_object(batch: BatchForm) -> dict[str, Any]:
    """A batch. `waiting_for` is no member of OpenAI's: what keeps the batch from going on."""
    found: dict[str, Any] = {
        "id": batch.id,
        "object": "batch",
        "endpoint": batch.endpoint,
        "errors": None,
        "input_file_id": batch.input_file,
        "completion_window": WINDOW,
        "status": batch.status,
        "output_file_id": batch.output_file or None,
        "error_file_id": batch.error_file or None,
        "created_at": batch.created_ms // 1000,
        "expires_at": batch.expires_ms // 1000,
        "request_counts": {
            "total": batch.total,
            "completed": batch.completed,
            "failed": batch.failed,
        },
        "metadata": batch.metadata,
    }
    for status in _TIMES:
        time_ms = batch.times_ms.get(status)
        found[f"{status}_at"] = None if time_ms is None else time_ms // 1000
    if batch.faults:
        found["errors"] = {
            "object": "list",
            "data": [
                {
                    "code": fault.code,
                    "message": fault.message,
                    "param": fault.param or None,
                    "line": fault.line or None,
                }
                for fault in batch.faults
            ],
        }
    if batch.waiting_for:
        found["waiting_for"] = batch.waiting_for
    return found


def list_object(found: Sequence[Mapping[str, Any]], *, has_more: bool) -> dict[str, Any]:
    """A page of a list."""
    return {
        "object": "list",
        "data": list(found),
        "first_id": found[0]["id"] if found else None,
        "last_id": found[-1]["id"] if found else None,
        "has_more": has_more,
    }
