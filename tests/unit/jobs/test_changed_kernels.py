"""A kernel that means something else than when it was tuned: old winners keep their keys and answer for no other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from catalogs import Hit, Miss, Query
from search.device.spec import DeviceSpec
from search.program.document import dump_program, parse_program
from search.program.library import Kernel, kernels
from search.program.resolve import resolve_case
from search.selection.freeze import lookup_key
from tuner_service.db.engine import Database
from tuner_service.errors import Conflict
from tuner_service.jobs.freeze_catalog import FreezeRequest, freeze_jobs
from tuner_service.jobs.submit import submit
from tuner_service.jobs.winner_index import WinnerIndex

SOFTMAX = {"kernel": "softmax", "dims": {"rows": 8, "cols": 33}}
RMS_NORM = {"kernel": "rms_norm", "dims": {"rows": 8, "cols": 33}}


def have_kernels(monkeypatch: pytest.MonkeyPatch, kernels: dict[str, Kernel]) -> None:
    """From now on cases are resolved with these kernels."""
    monkeypatch.setattr("search.program.resolve.kernels", lambda: kernels)
    monkeypatch.setattr("search.program.resolve.kernel_named", kernels.get)


@pytest.fixture
def change_softmax(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From now on, as after an upgrade, softmax is another program."""

    def change() -> None:
        document = dump_program(kernels()["softmax"].program)
        store = next(statement["store"] for statement in document["body"] if "store" in statement)
        store["value"] = f"({store['value']}) * 2.0"
        another: dict[str, Kernel] = kernels()
        another["softmax"] = replace(another["softmax"], program=parse_program(document))
        have_kernels(monkeypatch, another)

    return change


@pytest.fixture
def lose_softmax(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From now on, as after its package was removed, there is no softmax."""

    def lose() -> None:
        fewer = {name: kernel for name, kernel in kernels().items() if name != "softmax"}
        have_kernels(monkeypatch, fewer)

    return lose


@pytest.fixture
def tune(database: Database, service: Any, resolve: Any, small: dict[str, Any]) -> Callable[..., str]:
    def tune(*cases: dict[str, Any]) -> str:
        resolved = resolve({**small, "cases": list(cases)})
        job_id = submit(database, resolved, idempotency_key=None, body_sha256="5" * 64)
        assert service.finish(job_id)["state"] == "succeeded"
        return job_id

    return tune


def asked(device: DeviceSpec) -> Query:
    """For softmax as it is now."""
    case = resolve_case(SOFTMAX)
    key = lookup_key(case, device=device.identity_digest, toolchain="")
    return Query(kernel="softmax", params=case.params, key=key, toolchain=device.toolchain_fingerprint)


def test_an_old_winner_is_found_under_its_own_digest_alone(
    database: Database, device: DeviceSpec, tune: Callable[..., str], change_softmax: Callable[[], None]
) -> None:
    old_job, old = tune(SOFTMAX), asked(device)
    found = WinnerIndex().lookup(database, old)
    assert isinstance(found, Hit)
    change_softmax()
    new, index = asked(device), WinnerIndex()
    assert new.key.program_digest != old.key.program_digest
    missed = index.lookup(database, new)
    assert isinstance(missed, Miss)
    assert [sorted(near.differs) for near in missed.explanation.nearest] == [["program_digest"]]
    assert index.lookup(database, old) == found, "the entry is the same to the last field"
    new_job = tune(SOFTMAX)
    answers = [index.lookup(database, query) for query in (old, new)]
    assert [answer.entry.job_id for answer in answers if isinstance(answer, Hit)] == [old_job, new_job]


def test_a_winner_of_a_kernel_that_has_gone_is_found(
    database: Database, device: DeviceSpec, tune: Callable[..., str], lose_softmax: Callable[[], None]
) -> None:
    job_id, query = tune(SOFTMAX), asked(device)
    lose_softmax()
    found = WinnerIndex().lookup(database, query)
    assert isinstance(found, Hit)
    assert found.entry.job_id == job_id
    assert found.entry.key.program_digest == query.key.program_digest


@pytest.mark.parametrize("what", ["change_softmax", "lose_softmax"])
def test_what_no_kernel_of_today_says_is_left_out_of_a_catalog(
    what: str, request: pytest.FixtureRequest, database: Database, tune: Callable[..., str]
) -> None:
    change = request.getfixturevalue(what)
    job_id = tune(SOFTMAX, RMS_NORM)
    change()
    frozen = freeze_jobs(database, FreezeRequest(jobs=(job_id,)))
    [left_out] = frozen["left_out"]
    assert left_out["kernel"] == "softmax"
    assert "softmax" in left_out["reason"]
    assert "submitted" in left_out["reason"]
    assert frozen["candidate"]["kernels"] == ["rms_norm"]
    with pytest.raises(Conflict, match="no case of these jobs can be frozen"):
        freeze_jobs(database, FreezeRequest(jobs=(job_id,), cases=({"kernel": "softmax"},)))


@pytest.mark.parametrize(
    ("what", "said"), [("change_softmax", "changed after the job was submitted"), ("lose_softmax", "unknown kernel")]
)
@pytest.mark.parametrize("begun", [False, True])
def test_a_job_does_not_go_on_with_another_program(
    what: str, said: str, begun: bool, request: pytest.FixtureRequest, service: Any, submitted: str
) -> None:
    if begun:
        service.advancer.advance(submitted)
        service.run(next(iter(service.engine.tasks)))
    request.getfixturevalue(what)()
    service.die()
    job = service.finish(submitted)
    assert job["state"] == "failed"
    assert said in job["error"]
    assert job["progress"]["measured"] == 0
