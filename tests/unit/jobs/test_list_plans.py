"""Every list finds its rows by an index: the plans of PostgreSQL, asked as if reading a whole table cost a fortune."""

from __future__ import annotations

import random
import re
import string
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import event, select, text, update
from sqlalchemy.orm import Session

from search.program.limits import DEFAULT_LIMITS
from tuner_service.db.engine import Database
from tuner_service.db.models import Base, Trial
from tuner_service.db.queries import acceptances, catalogs, job_lists, jobs, pruning, trials
from tuner_service.jobs.submit import submit

FILTERS: tuple[Mapping[str, Any], ...] = (
    {},
    {"outcome": "measured"},
    {"stage": "constraints"},
    {"reason": "private_budget"},
    {"kernel": "softmax"},
    {"case_index": 0},
    {"width": 16},
    {"input": "reload"},
    {"is_default": True},
    {"in_space": False},
    {"max_registers": 64},
    {"spills": True},
    {"spills": False},
    {"outcome": "measured", "kernel": "softmax", "width": 8, "input": "cache"},
)
SMALL = {"devices", "workers", "device_leases", "alias_states"}
"""Tables of which a deployment has few rows."""
Statements = dict[str, tuple[str, Any]]


@contextmanager
def statements(database: Database) -> Iterator[Statements]:
    """What is asked meanwhile: shape of a statement → the statement and its values."""
    found: Statements = {}

    def note(_connection: Any, _cursor: Any, statement: str, values: Any, _context: Any, _many: bool) -> None:
        if statement.split(maxsplit=1)[0] in ("SELECT", "WITH", "DELETE", "UPDATE"):
            found.setdefault(re.sub(r"(%\(\w+\)s(::\w+)?(, )?)+", "?", statement), (statement, values))

    event.listen(database.engine, "before_cursor_execute", note)
    yield found
    event.remove(database.engine, "before_cursor_execute", note)


def reads(session: Session, statement: str, values: Any) -> Iterator[tuple[str, str, str | None]]:
    """How a statement reads each table: the table, the kind of scan, and by which index."""

    def walk(plan: Mapping[str, Any]) -> Iterator[tuple[str, str, str | None]]:
        if "Relation Name" in plan and "Scan" in plan["Node Type"]:
            yield plan["Relation Name"], plan["Node Type"], plan.get("Index Name")
        for inner in plan.get("Plans", ()):
            yield from walk(inner)

    asked = session.connection().exec_driver_sql(f"EXPLAIN (FORMAT JSON) {statement}", values)
    return walk(asked.scalar_one()[0]["Plan"])


@pytest.mark.databases("postgresql")
def test_no_list_reads_a_table_whole(
    database: Database, service: Any, submitted: str, resolve: Callable[..., Any], small: dict[str, Any]
) -> None:
    labelled = {**small, "labels": {"team": "kernels"}}
    other = submit(database, resolve(labelled), idempotency_key="k", body_sha256="5" * 64)
    service.finish(submitted)
    combined = [(sort, chosen) for sort in trials.SORTS for chosen in FILTERS]
    combined += [(f"-{sort}", {}) for sort in trials.SORTS]  # the other way round filters are no other
    with statements(database) as of_trials, database.read() as session:
        for sort, chosen in combined:
            page = trials.trial_page(session, submitted, sort=sort, limit=1, **chosen)
            if not chosen:
                trials.trial_page(session, submitted, sort=sort, limit=1, cursor=page["next"])
    with statements(database) as others, database.read() as session:
        for query in ({}, {"state": "queued"}, {"kernel": "softmax"}, {"label": "team"}, {"label": "team=kernels"}):
            first = job_lists.list_jobs(session, limit=1, **query)
            job_lists.list_jobs(session, cursor=first["next"], **query)
        job_lists.list_jobs(session, device="cpu")
        jobs.job_document(session, submitted, retimes=True)
        jobs.job_case_document(session, submitted, 0)
        jobs.list_job_events(session, submitted, after=1)
        for role in (None, "candidate"):
            catalogs.list_catalogs(session, role=role)
        for query in ({}, {"state": "queued"}, {"catalog": "a"}, {"state": "queued", "catalog": "a"}):
            acceptances.list_acceptances(session, **query)
        pruning.old_job_ids(session, "succeeded", before="2027", labels={"team": "kernels"})
        pruning.count_rows(session, [submitted])
    with statements(database) as removing, database.write() as session:
        pruning.remove_some(session, other, limit=100)

    assert len(of_trials) > len(combined), "every order with every filter is a statement of its own"
    with database.read() as session:
        session.execute(text("SET LOCAL enable_seqscan = off"))
        for statement, values in (*of_trials.values(), *others.values(), *removing.values()):
            for table, scan, by in reads(session, statement, values):
                known = table in Base.metadata.tables and table not in SMALL
                assert not known or scan != "Seq Scan", (table, by, statement)
        # Which trials there are, in which order, is told by an index alone: records are read of one page only.
        for word in ("enable_indexscan", "enable_bitmapscan"):
            session.execute(text(f"SET LOCAL {word} = off"))
        for statement, values in of_trials.values():
            if "CAST" not in statement:
                for table, scan, by in reads(session, statement, values):
                    alone = scan == "Index Only Scan" or by == "ix_trials_defaults"  # that one has a row per case
                    assert table != "trials" or alone, (scan, by, statement)


@pytest.mark.databases("postgresql")
def test_the_longest_texts_fit_the_index_of_lists(database: Database, service: Any, submitted: str) -> None:
    """PostgreSQL refuses an entry of more than a third of a page; what compresses well would not show it."""
    service.advancer.advance(submitted)
    draw = random.Random(5)

    def text_of(length: int) -> str:
        return "".join(draw.choices(string.ascii_letters + string.digits, k=length))

    names = sorted("x" + text_of(63) for _ in range(DEFAULT_LIMITS.tensors - 1))  # one more is the output
    longest = ",".join(f"{name}=reload" for name in names)
    texts = {"outcome": 16, "stage": 16, "reason": 64, "finished_at": 32}
    numbers = {"private_scalars": 2**62, "score": 1.5, "median_seconds": 1e-9, "registers": 255, "spill_bytes": 10**9}
    with database.write() as session:
        trial_id = session.scalars(select(Trial.id).limit(1)).one()
        values = {"input": longest, **{word: text_of(length) for word, length in texts.items()}, **numbers}
        session.execute(update(Trial).where(Trial.id == trial_id).values(id=text_of(40), **values))
    with database.read() as session:
        assert trials.trial_page(session, submitted, input=longest)["total"] == 1


def test_whatever_refers_to_a_row_is_found_by_an_index() -> None:
    """A row that goes is looked for in every table that may refer to it."""
    for table in Base.metadata.tables.values():
        led_by = {next(iter(index.columns)).name for index in table.indexes}
        led_by |= {
            next(iter(one.columns)).name for one in table.constraints if one.__visit_name__ != "foreign_key_constraint"
        }
        for key in table.foreign_keys:
            assert key.parent.name in led_by, f"{table.name}.{key.parent.name}"


@pytest.mark.databases("sqlite")
def test_sqlite_finds_defaults_by_their_index(database: Database) -> None:
    with statements(database) as asked, database.read() as session:
        trials.default_trial_ids(session, ["job_1"])
        ((statement, values),) = asked.values()
        (plan,) = session.connection().exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", values).all()
    assert plan.detail == "SEARCH trials USING INDEX ix_trials_defaults (job_id=?)"
