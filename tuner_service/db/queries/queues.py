"""The queue's own table, as far as operators look at it. PostgreSQL only: the embedded engine has no table."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sqlalchemy import text
from sqlalchemy.orm import Session

_DEPTHS = """
SELECT queue_name, status::text AS status, count(*) AS tasks FROM procrastinate_jobs
 WHERE status IN ('todo', 'doing') GROUP BY queue_name, status
"""
_DOING = """
SELECT worker_id, args FROM procrastinate_jobs WHERE status = 'doing' AND worker_id IS NOT NULL ORDER BY id
"""
_UNSERVED = """
SELECT DISTINCT args->>'job_id' AS job_id FROM procrastinate_jobs
 WHERE status = 'todo' AND args->>'queue' = 'compile' AND NOT args->>'compile_key' = ANY(:keys)
"""
_WORDS = {"todo": "waiting", "doing": "running"}


def queue_depths(session: Session) -> dict[str, dict[str, int]]:
    """Queue → ``{"waiting", "running"}``; tasks that are over are no rows any more, so the table is small."""
    found: dict[str, dict[str, int]] = {}
    for row in session.execute(text(_DEPTHS)):
        found.setdefault(row.queue_name, {"waiting": 0, "running": 0})[_WORDS[row.status]] = row.tasks
    return found


def tasks_by_worker(session: Session) -> dict[int, list[dict[str, Any]]]:
    """Number of a worker in the queue → the documents of the tasks that it has taken; none where there is no queue."""
    found: dict[int, list[dict[str, Any]]] = {}
    if session.get_bind().dialect.name == "sqlite":
        return found
    for row in session.execute(text(_DOING)):
        found.setdefault(row.worker_id, []).append(row.args)
    return found


def uncompiled_jobs(session: Session, compile_keys: Collection[str]) -> list[str]:
    """Jobs with a compile task that waits, and is for none of these keys; none where there is no queue."""
    if session.get_bind().dialect.name == "sqlite":
        return []
    return list(session.scalars(text(_UNSERVED), {"keys": list(compile_keys)}))
