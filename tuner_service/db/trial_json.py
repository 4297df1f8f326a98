"""The JSON of a trial, from a row whose records were read as text."""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import Text, cast

from tuner_service.db.json_text import JsonText, json_value
from tuner_service.db.models import Trial

TRIAL_COLUMNS = (
    Trial.id,
    Trial.job_id,
    Trial.case_id,
    Trial.ordinal,
    Trial.in_space,
    Trial.is_default,
    Trial.outcome,
    Trial.stage,
    Trial.reason,
    Trial.same_code_as,
    Trial.overlapped,
    Trial.attempt,
    Trial.worker,
    Trial.created_at,
    Trial.finished_at,
    *(
        cast(column, Text).label(column.key)
        for column in (
            Trial.candidate,
            Trial.detail,
            Trial.plan,
            Trial.code,
            Trial.build,
            Trial.timing,
            Trial.checks,
        )
    ),
)
"""What :func:`trial_document` reads of a row."""


def trial_document(row: Any, case: Any, merged: bool | None) -> dict[str, Any]:
    """The JSON of a trial. ``case``: ``position`` and ``document`` (text) of its case; ``merged``: whether the compiler
    merged its reloads, where that is known."""
    code = row.code
    if code is not None and merged is not None:
        code = json.dumps({**json.loads(code), "reload_merged": merged})
    return {
        "id": row.id,
        "job_id": row.job_id,
        "case_id": row.case_id,
        "case_index": case.position,
        "ordinal": row.ordinal,
        "case": JsonText(case.document),
        "candidate": JsonText(row.candidate),
        "in_space": row.in_space,
        "is_default": row.is_default,
        "outcome": row.outcome,
        "stage": row.stage,
        "reason": row.reason,
        "detail": json_value(row.detail),
        "same_code_as": row.same_code_as,
        "overlapped": row.overlapped,
        "plan": json_value(row.plan),
        "code": json_value(code),
        "build": json_value(row.build),
        "timing": json_value(row.timing),
        "checks": json_value(row.checks),
        "attempt": row.attempt,
        "worker": row.worker,
        "created_at": row.created_at,
        "finished_at": row.finished_at,
    }
