"""Kills at random moments, also in the middle of a task: the end is always the same, and nothing is counted twice."""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tuner_service.db.engine import Database
from tuner_service.db.queries.jobs import list_job_events
from tuner_service.jobs.submit import submit


class Killed(BaseException):
    """SIGKILL of the whole service: nothing after it runs, not even an except clause of ours."""


def killed_after(events: Iterator[Any], number: int) -> Iterator[Any]:
    for place, event in enumerate(events):
        if place == number:
            raise Killed
        yield event


@given(moves=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 6)), max_size=40), many=st.booleans())
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_end_is_the_same_whatever_was_killed_when(
    moves: list[tuple[int, int]],
    many: bool,
    tools: Any,
    device: Any,
    resolve: Any,
    small: dict[str, Any],
    make_service: Callable[..., Any],
    hurry: Callable[[Database], Database],
    check_sum: Callable[[Any], bool],
    sqlite_template: Path,
) -> None:
    if many:
        two = [{"kernel": "softmax", "dims": {"rows": rows, "cols": 33}} for rows in (8, 9)]
        small = {**small, "cases": two, "space": {**small["space"], "simd_scope": ["none", "all"]}}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.sqlite3"
        path.write_bytes(sqlite_template.read_bytes())
        database = hurry(Database(f"sqlite:///{path}"))
        service = make_service(database, tools, device)
        job_id = submit(database, resolve(small), idempotency_key=None, body_sha256="5" * 64)
        perform = type(tools).perform
        ended: dict[str, Any] = {}
        for which, after in moves:
            service.advancer.advance(job_id)
            keys = sorted(service.engine.tasks)
            if not keys:
                break
            if which == 3:
                service.die()
                continue
            tools.perform = lambda *a, after=after, **k: killed_after(perform(tools, *a, **k), after)
            try:
                service.run(keys[which % len(keys)])
            except Killed:
                service.die()
            for trial in service.trials(job_id):
                if trial["outcome"] != "pending":
                    seen = (trial["outcome"], trial["finished_at"], trial["worker"])
                    assert ended.setdefault(trial["id"], seen) == seen
            assert check_sum(service.job(job_id))
        tools.perform = lambda *a, **k: perform(tools, *a, **k)
        job = service.finish(job_id)
        assert job["state"] == "succeeded", job["error"]
        assert all(case["winner"] for case in job["cases"])
        assert job["progress"]["pending"] == job["progress"]["not_run"] == 0
        assert {t["id"] for t in service.trials(job_id)} >= ended.keys()
        assert not service.trials(job_id, stage="lost_worker")
        with database.read() as session:
            feed = list_job_events(session, job_id, limit=10_000)
        told = [e["data"]["trial_id"] for e in feed if e["data"].get("event") == "trial_measured"]
        assert len(told) == len(set(told)) == len(service.trials(job_id, outcome="measured"))
        database.close()
