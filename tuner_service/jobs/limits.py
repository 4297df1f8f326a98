"""Priority and limits of a job: how soon it gets its turn, and how much it may use."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from sqlalchemy.orm import Session

from search.program.report import Report, child
from tuner_service.db.queries.jobs import LIMITS
from tuner_service.db.queries.workers import database_now, seconds_between

MINIMUM_PRIORITY, DEFAULT_PRIORITY, MAXIMUM_PRIORITY = -100, 0, 100
MAXIMUM_LIMIT_SECONDS = 366 * 86_400


def read_priority(given: Any, report: Report) -> int:
    """The priority that a body gives; what is wrong with it is reported."""
    if isinstance(given, int) and not isinstance(given, bool) and MINIMUM_PRIORITY <= given <= MAXIMUM_PRIORITY:
        return given
    allowed = f"an integer from {MINIMUM_PRIORITY} to {MAXIMUM_PRIORITY}; larger goes first"
    report.add("/priority", given, "this is no priority", allowed)
    return DEFAULT_PRIORITY


def read_limits(given: Any, report: Report) -> dict[str, float]:
    """The limits that a body gives, in seconds; null is none. What is wrong with them is reported."""
    if not isinstance(given, Mapping):
        report.add("/limits", given, "limits are an object: what is limited to seconds", list(LIMITS))
        return {}
    for word, seconds in given.items():
        if word not in LIMITS:
            report.add(child("/limits", str(word)), seconds, "nothing of that name can be limited", list(LIMITS))
        elif seconds is not None and not _is_duration(seconds):
            allowed = f"seconds > 0, at most {MAXIMUM_LIMIT_SECONDS}; null is no limit"
            report.add(child("/limits", word), seconds, "this is no number of seconds", allowed)
    return {word: given[word] for word in LIMITS if given.get(word) is not None}


def limit_reached(session: Session, job: Mapping[str, Any]) -> str | None:
    """Which limit a job (its row) has reached; None when it may go on. Ages are the database's clock's."""
    limits = job["request"].get("limits", {})
    device, wall = limits.get("device_seconds", math.inf), limits.get("wall_seconds", math.inf)
    if job["device_seconds"] >= device:
        return "device_seconds"
    if wall < math.inf and job["started_at"] and seconds_between(job["started_at"], database_now(session)) >= wall:
        return "wall_seconds"
    return None


def _is_duration(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and 0 < value <= MAXIMUM_LIMIT_SECONDS
