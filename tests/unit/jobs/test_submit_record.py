"""Submitting once per key; recording once per event; the lists, their filters, orders and cursors."""

from collections.abc import Callable
from typing import Any

import pytest

from search.errors import InvalidInput
from search.events import TrialMeasured, TrialRejected, event_document, event_from_document
from search.outcome import Rejected
from search.steps import Build, Measure
from tuner_service.db.engine import Database
from tuner_service.db.queries.devices import list_devices, seen_device
from tuner_service.db.queries.job_lists import list_jobs
from tuner_service.db.queries.jobs import active_job_ids
from tuner_service.db.queries.trials import get_trial, list_trials, trial_source_sha
from tuner_service.db.queries.winners import settled_case, succeeded_job_ids, succeeded_jobs_mark, winner_keys
from tuner_service.errors import IdempotencyMismatch, NotFound
from tuner_service.jobs.ledger import Ledger
from tuner_service.jobs.record import record
from tuner_service.jobs.states import JOB_MOVES, TRIAL_MOVES, job_has_ended, job_may_move, trial_may_move
from tuner_service.jobs.submit import submit


def jobs_of(database: Database, **filters: Any) -> list[str]:
    with database.read() as session:
        return [job["id"] for job in list_jobs(session, **filters)["items"]]


def test_the_same_key_and_body_give_the_same_job(database: Database, resolve: Any, small: Any) -> None:
    first = submit(database, resolve(small), idempotency_key="k", body_sha256="a")
    assert submit(database, resolve(small), idempotency_key="k", body_sha256="a") == first
    assert submit(database, resolve(small), idempotency_key="other", body_sha256="a") != first
    assert submit(database, resolve(small), idempotency_key=None, body_sha256="a") != first
    assert len(jobs_of(database)) == 3


def test_the_same_key_with_another_body_creates_nothing(database: Database, resolve: Any, small: Any) -> None:
    first = submit(database, resolve(small), idempotency_key="k", body_sha256="a")
    with pytest.raises(IdempotencyMismatch, match=first):
        submit(database, resolve(small), idempotency_key="k", body_sha256="b")
    assert jobs_of(database) == [first]


def test_submitting_notes_the_device(database: Database, submitted: str, device: Any) -> None:
    with database.read() as session:
        (known,) = list_devices(session)
        assert known["id"] == device.id
        assert active_job_ids(session) == [submitted]


def test_submitting_says_nothing_new_of_a_device_that_is_known(
    database: Database, resolve: Any, small: Any, make_device: Any
) -> None:
    with database.write() as session:
        seen_device(session, make_device(available=False, reason="gcc is gone").document())
    submit(database, resolve(small), idempotency_key=None, body_sha256="a")
    with database.read() as session:
        assert [one["reason"] for one in list_devices(session)] == ["gcc is gone"], "whoever holds it knows better"


def test_the_tables_of_moves_are_closed() -> None:
    assert [state for state in JOB_MOVES if job_has_ended(state)] == ["succeeded", "failed", "cancelled"]
    assert all(target in JOB_MOVES for targets in JOB_MOVES.values() for target in targets)
    assert all(target in TRIAL_MOVES for targets in TRIAL_MOVES.values() for target in targets)
    assert not job_may_move("queued", "succeeded")
    assert not job_may_move("cancelled", "running")
    assert trial_may_move("measured", "rejected")
    assert not trial_may_move("rejected", "measured")
    with pytest.raises(KeyError):
        job_may_move("paused", "running")


class TestRecord:
    """The rules of the only place that writes results."""

    @pytest.fixture
    def building(self, service: Any, submitted: str) -> Any:
        service.advancer.advance(submitted)
        (task,) = service.engine.tasks.values()
        return task

    def events(self, service: Any, task: Any, tools: Any, step: Any) -> list[Any]:
        with service.database.read() as session:
            state = service.ledger.load(session, task.payload["case_id"])
        return list(tools.perform(step, state, None, device_id="", cancelled=lambda: False))

    def test_an_event_counts_once(self, service: Any, tools: Any, submitted: str, building: Any) -> None:
        case_id, attempts = building.payload["case_id"], building.payload["attempts"]
        trial = next(iter(attempts))
        (built,) = self.events(service, building, tools, Build(trials=(trial,)))
        write = lambda event: record(service.database, service.ledger, submitted, case_id, event, attempts=attempts)  # noqa: E731
        assert write(built)
        assert not write(built)
        measured, _ = self.events(service, building, tools, Measure(trials=(trial,)))
        assert write(measured)
        assert not write(measured)
        rejection = Rejected(stage="runtime", reason="crashed", detail={})
        assert not write(TrialRejected(trial=trial, rejection=rejection))
        assert write(TrialRejected(trial=trial, rejection=rejection, after_measured=True))
        with service.database.read() as session:
            document = get_trial(session, trial)
        assert (document["outcome"], document["stage"]) == ("rejected", "runtime")

    def test_events_come_back_from_json_and_count_the_same(
        self, service: Any, tools: Any, submitted: str, building: Any
    ) -> None:
        case_id, attempts = building.payload["case_id"], building.payload["attempts"]
        for event in self.events(service, building, tools, Build(trials=tuple(attempts))):
            again = event_from_document(event_document(event))
            assert record(service.database, service.ledger, submitted, case_id, again, attempts=attempts)
        with service.database.read() as session:
            assert Ledger().load(session, case_id) == service.ledger.load(session, case_id)

    def test_an_older_attempt_or_no_claim_is_refused(
        self, service: Any, tools: Any, submitted: str, building: Any
    ) -> None:
        case_id, attempts = building.payload["case_id"], building.payload["attempts"]
        trial = next(iter(attempts))
        (built,) = self.events(service, building, tools, Build(trials=(trial,)))
        for wrong in ({trial: attempts[trial] - 1}, {trial: attempts[trial] + 1}, {}):
            assert not record(service.database, service.ledger, submitted, case_id, built, attempts=wrong)

    def test_a_measurement_before_machine_code_is_refused(
        self, service: Any, tools: Any, submitted: str, building: Any
    ) -> None:
        case_id, attempts = building.payload["case_id"], building.payload["attempts"]
        measured = self.events(service, building, tools, Measure(trials=tuple(attempts)))[0]
        assert isinstance(measured, TrialMeasured)
        assert not record(service.database, service.ledger, submitted, case_id, measured, attempts=attempts)


class TestRebuiltLedger:
    """A ledger rebuilt from rows equals the one that lived in memory, after every single event."""

    def test_after_every_task(self, service: Any, submitted: str) -> None:
        compared = 0
        for _ in range(100):
            service.advancer.advance(submitted)
            if not service.engine.tasks:
                break
            key, task = next(iter(service.engine.tasks.items()))
            service.run(key)
            with service.database.read() as session:
                rebuilt = Ledger().load(session, task.payload["case_id"])
                assert rebuilt == service.ledger.load(session, task.payload["case_id"])
            compared += 1
        assert service.job(submitted)["state"] == "succeeded"
        assert compared >= 6


def knobs(trial: Any, *names: str) -> tuple[Any, ...]:
    return tuple(trial["candidate"][name] for name in names)


class TestLists:
    """Filters, orders and cursors."""

    @pytest.fixture
    def job(
        self,
        played_ledgers: Any,
        database_url: str,
        make_service: Any,
        tools: Any,
        device: Any,
        resolve: Any,
        small: Any,
    ) -> str:
        """A job of fifty trials that succeeded. Asked for before the database, which it fills."""
        small["cases"] = [{"kernel": name, "dims": {"rows": 8, "cols": 33}} for name in ("softmax", "rms_norm")]
        small["space"] |= {"simd_scope": ["none", "main", "all"], "vector": [1, 2]}

        def finish(database: Database) -> str:
            job_id = submit(database, resolve(small), idempotency_key=None, body_sha256="5" * 64)
            assert make_service(database, tools, device).finish(job_id)["state"] == "succeeded"
            return job_id

        return str(played_ledgers.put("fifty trials", finish, database_url))

    def pages(self, database: Database, job: str, limit: int, **query: Any) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = []
        cursor = None
        while True:
            with database.read() as session:
                page = list_trials(session, job, limit=limit, cursor=cursor, **query)
            items += page["items"]
            cursor = page["next"]
            if cursor is None:
                assert page["total"] == len(items)
                return items
            assert len(page["items"]) == limit

    @pytest.mark.parametrize("limit", [1, 3, 1000])
    @pytest.mark.parametrize("sort", ["ordinal", "median_seconds", "private_scalars", "width", "score", "finished_at"])
    @pytest.mark.parametrize("descending", [False, True])
    def test_pages_hold_everything_once_in_order(
        self, job: str, database: Database, limit: int, sort: str, descending: bool
    ) -> None:
        items = self.pages(database, job, limit, sort=f"-{sort}" if descending else sort)
        assert len({item["id"] for item in items}) == len(items) == 50
        key: Callable[[Any], Any] = {
            "ordinal": lambda t: (t["case_index"], t["ordinal"]),
            "median_seconds": lambda t: t["timing"] and t["timing"]["device_batch"]["median_seconds"],
            "private_scalars": lambda t: t["plan"]["private_scalars"],
            "width": lambda t: t["candidate"]["width"],
            "score": lambda t: t["plan"]["score"],
            "finished_at": lambda t: t["finished_at"],
        }[sort]
        keys = [key(item) for item in items]
        present = [k for k in keys if k is not None]
        assert present == sorted(present, reverse=descending)
        assert keys == present + [None] * (len(keys) - len(present))  # nulls last, either way

    @pytest.mark.databases("postgresql")
    def test_postgresql_sorts_as_sqlite_does(self, job: str, database: Database) -> None:
        """Nulls last either way, ties in canonical order: what one kind of database shows, the other does."""
        in_order = {item["id"]: place for place, item in enumerate(self.pages(database, job, 1000))}
        for sort, of in (("finished_at", "finished_at"), ("median_seconds", "timing")):
            for word in (sort, f"-{sort}"):
                items = self.pages(database, job, 7, sort=word)
                absent = [item[of] is None for item in items]
                assert absent == sorted(absent)
                last = [in_order[item["id"]] for item in items if item[of] is None]
                assert last == sorted(last)
        widths = [
            (item["candidate"]["width"], in_order[item["id"]]) for item in self.pages(database, job, 7, sort="width")
        ]
        assert widths == sorted(widths)

    @pytest.mark.databases("sqlite", "postgresql")
    def test_filters_combine(self, job: str, database: Database) -> None:
        everything = self.pages(database, job, 1000)
        cases: list[tuple[dict[str, Any], Callable[[Any], bool]]] = [
            ({"outcome": "rejected"}, lambda t: t["outcome"] == "rejected"),
            ({"stage": "constraints"}, lambda t: t["stage"] == "constraints"),
            ({"reason": "private_budget"}, lambda t: t["reason"] == "private_budget"),
            ({"kernel": "rms_norm"}, lambda t: t["case"]["kernel"] == "rms_norm"),
            ({"case_index": 0}, lambda t: t["case_index"] == 0),
            ({"width": 16, "input": "cache"}, lambda t: knobs(t, "width", "input") == (16, "cache")),
            ({"is_default": True}, lambda t: t["is_default"]),
            ({"in_space": False}, lambda t: not t["in_space"]),
            ({"kernel": "none"}, lambda t: False),
        ]  # fmt: skip
        for query, expected in cases:
            found = self.pages(database, job, 7, **query)
            assert found == [item for item in everything if expected(item)], query

    @pytest.mark.parametrize(
        ("query", "field"),
        [
            ({"outcome": "won"}, "/outcome"),
            ({"stage": "luck"}, "/stage"),
            ({"sort": "colour"}, "/sort"),
            ({"limit": 0}, "/limit"),
            ({"cursor": "!!"}, "/cursor"),
            ({"cursor": ""}, "/cursor"),
            ({"cursor": "é"}, "/cursor"),
            ({"cursor": "W10"}, "/cursor"),
            ({"cursor": "bnVsbA"}, "/cursor"),
        ],
    )
    def test_bad_queries_are_named(self, database: Database, submitted: str, query: Any, field: str) -> None:
        with database.read() as session, pytest.raises(InvalidInput) as caught:
            list_trials(session, submitted, **query)
        assert [problem.field for problem in caught.value.problems] == [field]

    def test_a_cursor_of_another_order_is_refused(self, job: str, database: Database) -> None:
        with database.read() as session:
            cursor = list_trials(session, job, sort="width", limit=1)["next"]
            with pytest.raises(InvalidInput, match="another list"):
                list_trials(session, job, sort="-width", limit=1, cursor=cursor)
            with pytest.raises(InvalidInput, match="another list"):
                list_jobs(session, cursor=cursor)

    def test_jobs_newest_first_with_filters(
        self, service: Any, database: Database, resolve: Any, small: Any, device: Any
    ) -> None:
        ids = [
            submit(database, resolve({**small, "labels": labels}), idempotency_key=None, body_sha256="5")
            for labels in ({"team": "a"}, {"team": "b"}, {})
        ]
        service.finish(ids[0])
        assert jobs_of(database) == ids[::-1]
        assert jobs_of(database, state="succeeded") == [ids[0]]
        assert jobs_of(database, label="team=b") == [ids[1]]
        assert jobs_of(database, label="team") == [ids[1], ids[0]]
        assert jobs_of(database, kernel="softmax", device="cpu") == ids[::-1]
        assert jobs_of(database, device=device.id) == ids[::-1]
        assert jobs_of(database, device="tpu") == jobs_of(database, kernel="none") == []
        with database.read() as session:
            first = list_jobs(session, limit=2)
            second = list_jobs(session, limit=2, cursor=first["next"])
            assert (first["total"], second["total"], second["next"]) == (3, 3, None)
            assert [job["id"] for job in first["items"] + second["items"]] == ids[::-1]
            with pytest.raises(InvalidInput, match="unknown state"):
                list_jobs(session, state="happy")

    def test_settled_cases_are_those_with_winners_of_jobs_that_succeeded(
        self, job: str, database: Database, submitted: str
    ) -> None:
        with database.read() as session:
            assert succeeded_job_ids(session) == [job]
            assert succeeded_jobs_mark(session)[0] == 1
            assert winner_keys(session, [submitted]) == []
            keys = winner_keys(session, [job, submitted])
            assert [key["case"]["kernel"] for key in keys] == ["softmax", "rms_norm"]
            assert {key["device"] for key in keys} == {"1" * 64}
            one = settled_case(session, keys[1]["case_id"])
            assert one["device"]["toolchain_fingerprint"] == keys[1]["toolchain"]
            with pytest.raises(KeyError):
                settled_case(session, "case_none")
        assert one["job_id"] == job
        assert one["winner"]["outcome"] == "measured"
        assert one["reference"]["candidate"]["input"] == "reload"
        assert one["device"]["identity_digest"] == "1" * 64
        assert {event["event"] for event in one["events"]} >= {"finals_measured", "fresh_built", "revalidated"}

    def test_the_source_of_a_trial(self, job: str, database: Database) -> None:
        with database.read() as session:
            measured = list_trials(session, job, outcome="measured", limit=1)["items"][0]
            rejected = list_trials(session, job, outcome="rejected", limit=1)["items"][0]
            assert trial_source_sha(session, measured["id"]) == measured["code"]["source_sha256"]
            assert trial_source_sha(session, rejected["id"]) is None
            for missing in (lambda: trial_source_sha(session, "trl_none"), lambda: get_trial(session, "trl_none")):
                with pytest.raises(NotFound):
                    missing()
