"""Warm or cold, spills or none: asked for, refused where there is no such thing, recorded, keyed, frozen, accepted."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import catalogs
from catalogs import DeviceIdentity, Hit, Miss, Query, sha256_hex
from search.device.probe import compile_only
from search.device.spec import DeviceSpec
from search.errors import InvalidInput
from search.ledger import CaseState
from search.program.resolve import resolve_case
from search.selection.freeze import lookup_key
from search.steps import Measure
from tuner_service.db.engine import Database
from tuner_service.db.queries import acceptances
from tuner_service.db.queries import catalogs as catalog_queries
from tuner_service.errors import Conflict
from tuner_service.jobs.acceptance import AcceptRequest, accept
from tuner_service.jobs.acceptance_ledger import load_state
from tuner_service.jobs.freeze_catalog import FreezeRequest, freeze_jobs
from tuner_service.jobs.promote import promote
from tuner_service.jobs.request import Limits, ResolvedRequest, resolve_request
from tuner_service.jobs.submit import submit
from tuner_service.jobs.winner_index import WinnerIndex
from tuner_service.workers import toolbox
from tuner_service.workers.toolbox import Toolbox

CASE = {"kernel": "softmax", "dims": {"rows": 8, "cols": 33}}
SPACE = {
    "width": [32, 64],
    "input": ["reload", "cache"],
    "rows_per_block": [1],
    "vector": [1],
    "materialize": ["private"],
}


@pytest.fixture
def device(make_device: Callable[..., DeviceSpec]) -> DeviceSpec:
    """A GPU on paper."""
    identity, toolchain = {"name": "NVIDIA H200"}, {"nvcc": "13"}
    return make_device(
        id="nvidia-h200:0",
        kind="nvidia-h200",
        target="cuda",
        architecture="sm_90",
        uuid="GPU-0",
        identity=identity,
        identity_digest=DeviceIdentity(kind="nvidia-h200", identity=identity).digest,
        toolchain=toolchain,
        toolchain_fingerprint=sha256_hex(toolchain),
    )


def body(device: DeviceSpec, **changes: Any) -> dict[str, Any]:
    return {"cases": [CASE], "device": device.id, "space": SPACE, **changes}


@pytest.fixture
def ask(device: DeviceSpec) -> Callable[..., ResolvedRequest]:
    def ask(**changes: Any) -> ResolvedRequest:
        return resolve_request(body(device, **changes), devices={device.id: device}, limits=Limits())

    return ask


@pytest.fixture
def finished(database: Database, service: Any, ask: Callable[..., ResolvedRequest]) -> Callable[..., str]:
    def finished(**changes: Any) -> str:
        job_id = submit(database, ask(**changes), idempotency_key=None, body_sha256="5" * 64)
        assert service.finish(job_id)["state"] == "succeeded"
        return job_id

    return finished


def test_what_is_as_ever_is_not_said(ask: Callable[..., ResolvedRequest]) -> None:
    usual = ask().document
    assert ask(cache_context="warm", spills_allowed=True).document == usual
    assert not {"cache_context", "spills_allowed"} & set(usual)
    other = ask(cache_context="cold", spills_allowed=False)
    assert other.document == {**usual, "cache_context": "cold", "spills_allowed": False}
    assert resolve_request(other.document, devices={other.device.id: other.device}, limits=Limits()) == other


def refused(device: DeviceSpec, **changes: Any) -> dict[str, Any]:
    given = body(device, **changes) if device.target == "cuda" else {**body(device, **changes), "space": {}}
    with pytest.raises(InvalidInput) as caught:
        resolve_request(given, devices={device.id: device}, limits=Limits())
    (problem,) = caught.value.problems
    return problem.document()


def test_where_there_is_no_such_thing_it_is_refused_with_the_reason(
    device: DeviceSpec, make_device: Callable[..., DeviceSpec]
) -> None:
    cpu, untimed = make_device(), compile_only("cuda-sm_90", toolchain={}, unavailable=None)
    cold = refused(cpu, cache_context="cold")
    assert (cold["field"], cold["value"], cold["allowed"]) == ("/cache_context", "cold", ["warm"])
    assert "measures warm alone" in cold["message"]
    assert "never timed" in refused(untimed, cache_context="cold")["message"]
    assert refused(device, cache_context="tepid")["allowed"] == ["warm", "cold"]
    assert refused(device, cache_context=["cold"])["field"] == "/cache_context"
    spills = refused(cpu, spills_allowed=False)
    assert (spills["field"], spills["allowed"]) == ("/spills_allowed", [True])
    assert refused(device, spills_allowed=0)["allowed"] == [True, False]
    without_spills = body(untimed, spills_allowed=False)
    resolved = resolve_request(without_spills, devices={untimed.id: untimed}, limits=Limits())
    assert resolved.document["spills_allowed"] is False


def test_the_toolbox_measures_as_the_job_asked(
    device: DeviceSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []

    class PaperMeasurer:
        def __init__(self, device: DeviceSpec, work: Path, *, cache_context: str, **_: Any) -> None:
            self.device, self.cache_context, self.closed = device, cache_context, False
            made.append(self)

        def close(self) -> None:
            self.closed = True

    monkeypatch.setattr(toolbox, "Measurer", PaperMeasurer)
    monkeypatch.setattr(toolbox, "perform", lambda step, state, case, tools: iter([tools.measurer]))
    box = Toolbox(
        devices=lambda: {device.id: device},
        artifacts=tmp_path,
        work=tmp_path,
        child_timeout_seconds=1.0,
        overlap_watch=lambda: lambda: False,
    )

    def used(cache_context: Any) -> Any:
        state = CaseState(id="case", trials=(), baselines_wanted=(), cache_context=cache_context)
        step, case = Measure(trials=(), retimes=0), resolve_case(CASE)
        (measurer,) = box.perform(step, state, case, device_id=device.id, cancelled=lambda: False)
        return measurer

    warm = used("warm")
    assert used("warm") is warm
    cold = used("cold")
    assert (warm.cache_context, cold.cache_context, len(made)) == ("warm", "cold", 2)
    assert (warm.closed, cold.closed) == (True, False), "an idle child on the same card would count as somebody else"


def test_told_to_every_step_found_frozen_and_accepted_in_its_own_context_alone(
    database: Database, finished: Callable[..., str], device: DeviceSpec, service: Any, tools: Any
) -> None:
    told: set[tuple[str, bool]] = set()
    perform = tools.perform

    def listen(step: Any, state: CaseState, *arguments: Any, **options: Any) -> Any:
        told.add((state.cache_context, state.spills_allowed))
        yield from perform(step, state, *arguments, **options)

    tools.perform = listen
    warm = finished()
    assert told == {("warm", True)}
    told.clear()
    cold = finished(cache_context="cold", spills_allowed=False)
    assert told == {("cold", False)}
    jobs = {"warm": warm, "cold": cold}
    _found_apart(database, device, jobs)
    with pytest.raises(Conflict, match="freeze them apart"):
        freeze_jobs(database, FreezeRequest(jobs=(warm, cold)))
    digests = {}
    for context, job_id in jobs.items():
        digests[context] = freeze_jobs(database, FreezeRequest(jobs=(job_id,)))["candidate"]["digest"]
        with database.read() as session:
            stored = catalog_queries.catalog_row(session, digests[context])["body"].encode()
        (entry,) = catalogs.Catalog.from_bytes(stored, digest=digests[context]).entries
        assert entry.key.cache_context == context
        acceptance_id = accept(database, digests[context], AcceptRequest(), devices=service.devices)
        with database.read() as session:
            assert load_state(session, acceptance_id).replay.cache_context == context
    _promoted(database, digests["warm"])
    with pytest.raises(Conflict, match="measured cold and what alias 'prod' names warm"):
        accept(database, digests["cold"], AcceptRequest(), devices=service.devices)
    assert accept(database, digests["cold"], AcceptRequest(alias="prod-cold"), devices=service.devices)


def _found_apart(database: Database, device: DeviceSpec, jobs: dict[str, str]) -> None:
    case, index = resolve_case(CASE), WinnerIndex()

    def found(context: str) -> Any:
        key = lookup_key(case, device=device.identity_digest, toolchain="", cache_context=context)
        query = Query(kernel="softmax", params=case.params, key=key, toolchain=device.toolchain_fingerprint)
        return index.lookup(database, query)

    for context, job_id in jobs.items():
        answer = found(context)
        assert isinstance(answer, Hit)
        assert (answer.entry.key.cache_context, answer.entry.job_id) == (context, job_id)
    missed = found("tepid")
    assert isinstance(missed, Miss)
    assert missed.nearest[0].differs == {"cache_context": ("tepid", "cold")}


def _promoted(database: Database, digest: str) -> None:
    with database.write() as session:
        (row,) = [a for a in acceptances.list_acceptances(session)["items"] if a["catalog"] == digest]
        acceptances.update_acceptance(session, row["id"], {"state": "succeeded", "verdict": "accepted"})
    promote(database, "prod", digest)
