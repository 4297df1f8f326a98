"""Every corruption is refused, with the place named, even when the attacker works the bundle's sha256 out again."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parent))

import bundle_factory as make
from bundle_damage import OTHER, PLAIN, Bundle, Damage, edit, named, record, refuses

from catalogs.audit import audit

SHARED = make.bundle(cases=3, same={"D": "R"})
"""Case 0 and case 2 measure the reference in the default's stead."""


def retimed(one: dict[str, Any]) -> None:
    """Work a record's median and digest out from its samples: what a careful attacker does."""
    for phase in one["timing"].values():
        ordered = sorted(phase["samples_seconds"])
        phase["median_seconds"] = ordered[len(ordered) // 2]
    one["samples_sha256"] = make.sha(one["timing"])


def cooled(one: dict[str, Any]) -> None:
    """The samples were taken in another cache context than the scope's, and say so."""
    one["timing"]["e2e_batch"]["cache_context"] = "cold"
    retimed(one)


def slow_sample(one: dict[str, Any]) -> list[float]:
    samples: list[float] = one["timing"]["device_batch"]["samples_seconds"]
    return samples


def on_record(change: Callable[[dict[str, Any]], object]) -> Damage:
    return lambda bundle: change(record(bundle, 2, 1, "C"))


def swap_samples(bundle: Bundle) -> None:
    one, other = record(bundle, 1, 0, "R"), record(bundle, 1, 0, "C")
    for name in ("timing", "samples_sha256"):
        one[name], other[name] = other[name], one[name]


def swap_order(bundle: Bundle) -> None:
    """R and C of round 0 in the other order, with clocks and positions to match."""
    found = bundle["records"]
    at, to = (found.index(record(bundle, 0, 0, arm)) for arm in "RC")
    when = ("position", "started_at", "finished_at", "started_monotonic_seconds", "finished_monotonic_seconds")
    for name in when:
        found[at][name], found[to][name] = found[to][name], found[at][name]
    found[at], found[to] = found[to], found[at]


def remove_round(bundle: Bundle) -> None:
    bundle["records"] = [r for r in bundle["records"] if r["round"] != 3]


def remove_case(bundle: Bundle) -> None:
    """A case that the catalog has is left out of everything else."""
    bundle["cases"].pop()
    bundle["results"]["cases"].pop()
    bundle["records"] = [r for r in bundle["records"] if r["case"] != 1]


def hide_case(bundle: Bundle) -> None:
    """As above, and positions, order and ids are those of a bundle of one case."""
    small = make.bundle(cases=1)
    bundle.update({name: small[name] for name in ("cases", "records", "results")})


def swap_catalog(bundle: Bundle) -> None:
    bundle["catalogs"]["candidate"] = copy.deepcopy(bundle["catalogs"]["incumbent"])


def swap_roles(bundle: Bundle) -> None:
    catalogs = bundle["catalogs"]
    catalogs["candidate"], catalogs["reference"] = catalogs["reference"], catalogs["candidate"]


def edit_entry(bundle: Bundle) -> None:
    """A catalog's entry is edited and its digest worked out again."""
    catalog = bundle["catalogs"]["candidate"]
    catalog["entries"][0]["candidate"]["width"] = 1024
    catalog.pop("digest")
    catalog["digest"] = make.sha(catalog)


def duplicate_record(bundle: Bundle) -> None:
    bundle["records"].insert(5, copy.deepcopy(bundle["records"][4]))


def extra_record(bundle: Bundle) -> None:
    """A second try of one arm, under an id of its own."""
    bundle["records"].append({**copy.deepcopy(bundle["records"][-1]), "id": "rec_extra"})


def remove_rejection(bundle: Bundle) -> None:
    trials = bundle["search"][0]["cases"][1]["trials"]
    trials.remove(next(t for t in trials if t["reason"] == "private_budget"))


def hide_rejection(bundle: Bundle) -> None:
    """A rejection is removed and a measured trial is there twice under another id, so that the count is right."""
    trials = bundle["search"][0]["cases"][1]["trials"]
    at = next(n for n, t in enumerate(trials) if t["reason"] == "private_budget")
    trials[at] = {**copy.deepcopy(trials[0]), "id": "trl_again"}


def reverse_clock(bundle: Bundle) -> None:
    one = record(bundle, 2, 1, "C")
    one["started_at"], one["finished_at"] = one["finished_at"], one["started_at"]


def overlap(bundle: Bundle) -> None:
    found = bundle["records"]
    found[9]["started_at"] = found[8]["started_at"]


def drop_slow_sample(bundle: Bundle) -> None:
    samples = slow_sample(record(bundle, 2, 1, "C"))
    samples.remove(max(samples))


def replace_slow_sample(bundle: Bundle) -> None:
    """The slowest sample becomes a second fastest; the median stays."""
    samples = slow_sample(record(bundle, 2, 1, "C"))
    samples.sort()
    samples[-1] = samples[-2]


LISTED: dict[str, tuple[Damage, str, str]] = {
    "a missing round": (remove_round, "round 3", ""),
    "a missing case": (remove_case, "cases", ""),
    "a missing case, hidden": (hide_case, "cases", ""),
    "a missing record": (lambda b: b["records"].remove(record(b, 1, 1, "D")), "round 1", ""),
    "an edited sample": (on_record(lambda r: slow_sample(r).__setitem__(4, 9e-6)), "round 2, case 1, arm C", "timing"),
    "an edited slow sample": (replace_slow_sample, "round 2, case 1, arm C", "samples_sha256"),
    "a dropped slow sample": (drop_slow_sample, "round 2, case 1, arm C", "timing.device_batch.samples_seconds"),
    "an edited median": (
        on_record(lambda r: r["timing"]["e2e_batch"].update(median_seconds=1e-5)),
        "round 2, case 1, arm C",
        "timing.e2e_batch.median_seconds",
    ),
    "an edited ratio": (
        edit("results", "cases", 1, "metrics", "device_batch", "reference", "ratio_median", value=1.5),
        "results.cases[1]",
        "metrics.device_batch.reference.ratio_median",
    ),
    "a swapped catalog": (swap_catalog, "case 0", "arms.C"),
    "swapped roles": (swap_roles, "catalogs.candidate", "role"),
    "an edited source hash": (
        on_record(lambda r: r.update(source_sha256=OTHER)), "round 2, case 1, arm C", "source_sha256",
    ),
    "an unbalanced order": (swap_order, "round 0, case 0, arm C", ""),
    "a changed toolchain": (
        on_record(lambda r: r.update(toolchain_fingerprint=OTHER)), "round 2, case 1, arm C", "toolchain_fingerprint",
    ),
    "a missing correctness record": (on_record(lambda r: r.pop("checks")), "round 2, case 1, arm C", "checks"),
    "a failed correctness record": (
        on_record(lambda r: r["checks"].update(passed=False)), "round 2, case 1, arm C", "checks.passed",
    ),
    "a duplicated record": (duplicate_record, "records[5]", ""),
    "overlapping timestamps": (overlap, "records[9]", "started_at"),
    "reversed timestamps": (reverse_clock, "round 2, case 1, arm C", "finished_at"),
    "a changed input hash": (
        on_record(lambda r: r["checks"]["inputs"][1].update(input_sha256=OTHER)),
        "round 2, case 1, arm C",
        "checks.inputs[1].input_sha256",
    ),
    "a removed rejection": (remove_rejection, "search[0].cases[1]", "enumerated"),
    "a removed rejection, hidden": (hide_rejection, "search[0].cases[1]", "candidate"),
}  # fmt: skip
"""The list of design page 3."""


@pytest.mark.parametrize(("damage", "where", "field"), LISTED.values(), ids=LISTED.keys())
def test_listed_corruptions(damage: Damage, where: str, field: str) -> None:
    refuses(damage, where, field)


def results_case(**changes: Any) -> Damage:
    return lambda bundle: bundle["results"]["cases"][0].update(changes)


def arm(name: str, **changes: Any) -> Damage:
    return lambda bundle: bundle["cases"][0]["arms"][name].update(changes)


def a_check(**changes: Any) -> Damage:
    return on_record(lambda r: r["checks"]["inputs"][0].update(changes))


def a_trial(**changes: Any) -> Damage:
    return lambda bundle: bundle["search"][0]["cases"][0]["trials"][0].update(changes)


HERE = "round 2, case 1, arm C"
TRIAL = "search[0].cases[0]"
OPPONENT = {"class": "positive", "ratio_median": 2.0, "ratio_min": 2.0, "ratio_max": 2.0}
RECORDS: dict[str, tuple[Damage, str, str]] = {
    "an extra record": (extra_record, "records[48]", ""),
    "samples of two arms swapped": (swap_samples, "results.cases[0]", "ratio"),
    "an arm renamed": (on_record(lambda r: r.update(arm="R")), "round 2, case 1, arm R", ""),
    "another round": (on_record(lambda r: r.update(round=3)), "round 3, case 1, arm C", ""),
    "a round too high": (on_record(lambda r: r.update(round=4)), "round 4", "round"),
    "a case that is not there": (on_record(lambda r: r.update(case=2)), "case 2, arm C", "case"),
    "a negative round": (on_record(lambda r: r.update(round=-1)), "records[", "round"),
    "an arm that is none": (on_record(lambda r: r.update(arm="X")), "records[", "arm"),
    "a position gap": (on_record(lambda r: r.update(position=40)), HERE, "position"),
    "fewer guards than the other records": (
        on_record(lambda r: r["checks"]["inputs"][0].update(guard_elements_checked=1)), HERE, "guard_elements_checked",
    ),
    "a wider rule of tolerance": (
        on_record(lambda r: r["checks"]["inputs"][0].update(tolerance="any")), HERE, "tolerance",
    ),
    "other edge patterns": (
        on_record(lambda r: r["checks"]["inputs"][2].update(patterns=["x:zeros"])), HERE, "patterns",
    ),
    "fewer guards than each buffer has": (
        lambda b: [i.update(guard_elements_checked=100) for r in b["records"] for i in r["checks"]["inputs"]],
        "records[0]", "guard_elements_checked",
    ),
    "fewer elements than the trial was checked over": (
        lambda b: [i.update(elements_checked=1) for r in b["records"] for i in r["checks"]["inputs"]],
        "records[0]", "checks.inputs",
    ),
    "a control that is a copy of the candidate's samples": (
        lambda b: record(b, 2, 1, "A").update(
            {name: copy.deepcopy(record(b, 2, 1, "C")[name]) for name in ("timing", "samples_sha256")}
        ),
        "round 2, case 1, arm", "timing",
    ),
    "a monotonic clock below zero": (
        lambda b: [
            r.update({name: r[name] - 1e6 for name in ("started_monotonic_seconds", "finished_monotonic_seconds")})
            for r in b["records"]
        ],
        "records[0]", "started_monotonic_seconds",
    ),
    "records re-ordered": (lambda b: b["records"].reverse(), "records[", ""),
    "two records exchanged": (lambda b: b["records"].insert(2, b["records"].pop(3)), "round 0", ""),
    "an id twice": (on_record(lambda r: r.update(id="rec_0")), HERE, "id"),
    "another machine code": (on_record(lambda r: r.update(artifact_sha256=OTHER)), HERE, "artifact_sha256"),
    "another plan": (on_record(lambda r: r["plan"].update(private_scalars=9)), HERE, "plan"),
    "another candidate": (on_record(lambda r: r["candidate"].update(width=1)), HERE, "candidate"),
    "another device": (on_record(lambda r: r.update(device_digest=OTHER)), HERE, "device_digest"),
    "one build for two rounds": (
        on_record(lambda r: r.update(build_process="round 0, process 100")), HERE, "build_process",
    ),
    "another process than the build's": (
        on_record(lambda r: r.update(build_process="another")), HERE, "build_process",
    ),
    "a build removed": (lambda b: b["builds"].pop(3), "round 0", "builds"),
    "a round's builds removed": (
        lambda b: b.update(builds=[one for one in b["builds"] if one["round"] != 2]), "round 2", "builds",
    ),
    "a build twice": (lambda b: b["builds"].insert(4, copy.deepcopy(b["builds"][3])), "builds[4]", ""),
    "a build of another source": (
        lambda b: b["builds"][5].update(source_sha256=OTHER), "builds[5] (round 0, case 1, arm R)", "source_sha256",
    ),
    "a build of other machine code": (
        lambda b: b["builds"][5].update(artifact_sha256=OTHER), "builds[5]", "artifact_sha256",
    ),
    "a build of another plan": (lambda b: b["builds"][5]["plan"].update(private_scalars=77), "builds[5]", "plan"),
    "a build of a case that is not there": (lambda b: b["builds"][5].update(case=9), "builds[5]", ""),
    "a build of a round too high": (lambda b: b["builds"][5].update(round=4), "builds[5]", ""),
    "builds re-ordered": (lambda b: b["builds"].reverse(), "builds", ""),
    "one process for the builds of two rounds": (
        lambda b: b["builds"][-1].update(build_process=b["builds"][0]["build_process"]), "builds[31]", "build_process",
    ),
    "no build process": (on_record(lambda r: r.update(build_process=None)), HERE, "build_process"),
    "a source of torch": (
        lambda b: record(b, 0, 0, "T").update(source_sha256=OTHER), "round 0, case 0, arm T", "source_sha256",
    ),
    "an unknown member": (on_record(lambda r: r.update(note="fine")), HERE, "note"),
    "a sample too many": (on_record(lambda r: (slow_sample(r).append(1e-5), retimed(r))), HERE, "samples_seconds"),
    "a negative sample": (on_record(lambda r: (slow_sample(r).__setitem__(0, -1e-5), retimed(r))), HERE, "[0]"),
    "a zero sample": (on_record(lambda r: (slow_sample(r).__setitem__(0, 0.0), retimed(r))), HERE, "[0]"),
    "a text for a sample": (on_record(lambda r: slow_sample(r).__setitem__(0, "1e-5")), HERE, "[0]"),
    "true for a sample": (on_record(lambda r: slow_sample(r).__setitem__(0, True)), HERE, "[0]"),
    "no samples": (on_record(lambda r: slow_sample(r).clear()), HERE, "samples_seconds"),
    "samples worked out again": (
        on_record(lambda r: (r["timing"]["device_batch"].update(samples_seconds=[9e-6] * 9), retimed(r))),
        "results.cases[1]", "metrics.device_batch",
    ),
    "a metric removed": (on_record(lambda r: r["timing"].pop("e2e_batch")), HERE, "timing.e2e_batch"),
    "calls of another sample": (
        on_record(lambda r: r["timing"]["device_batch"].update(calls_per_sample=7)), HERE, "samples_sha256",
    ),
    "more samples than time": (
        on_record(lambda r: (r["timing"]["device_batch"].update(calls_per_sample=10**6), retimed(r))), HERE, "timing",
    ),
    "no duration": (
        on_record(lambda r: r.update(finished_monotonic_seconds=r["started_monotonic_seconds"])),
        HERE, "finished_monotonic_seconds",
    ),
    "clocks that disagree": (
        on_record(lambda r: r.update(finished_monotonic_seconds=r["started_monotonic_seconds"] + 0.8)),
        HERE, "finished_at",
    ),
    "overlap by the monotonic clock alone": (
        on_record(lambda r: r.update(started_monotonic_seconds=r["started_monotonic_seconds"] - 0.9)),
        HERE, "started_monotonic_seconds",
    ),
    "a timestamp without a zone": (on_record(lambda r: r.update(started_at="2026-03-01T12:00:00")), HERE, "started_at"),
    "a day that is none": (on_record(lambda r: r.update(started_at="2026-02-30T12:00:00Z")), HERE, "started_at"),
    "zero elements checked": (a_check(elements_checked=0), HERE, "checks.inputs[0].elements_checked"),
    "fewer elements checked": (a_check(elements_checked=5), HERE, "checks.inputs[0].elements_checked"),
    "zero guard elements": (a_check(guard_elements_checked=0), HERE, "guard_elements_checked"),
    "failing elements": (a_check(failures=1), HERE, "checks.inputs[0].failures"),
    "an error that is infinite": (a_check(max_abs_error="inf"), HERE, "checks.inputs[0].max_abs_error"),
    "an input set removed": (on_record(lambda r: r["checks"]["inputs"].pop()), HERE, "checks.inputs"),
    "an input set twice": (
        on_record(lambda r: r["checks"]["inputs"].append(copy.deepcopy(r["checks"]["inputs"][0]))),
        HERE, "checks.inputs",
    ),
    "damaged guards": (on_record(lambda r: r["checks"].update(guards_intact=False)), HERE, "checks.guards_intact"),
    "changed inputs": (on_record(lambda r: r["checks"].update(inputs_unchanged=False)), HERE, "inputs_unchanged"),
    "passed is 1": (on_record(lambda r: r["checks"].update(passed=1)), HERE, "checks.passed"),
    "checks of null": (on_record(lambda r: r.update(checks=None)), HERE, "checks"),
    "a record of null": (lambda b: b["records"].__setitem__(7, None), "records[7]", ""),
}  # fmt: skip
CASES: dict[str, tuple[Damage, str, str]] = {
    "another key": (edit("cases", 0, "key_digest", value=OTHER), "case 0", "key_digest"),
    "another shape": (edit("cases", 0, "dims", "rows", value=65), "case 0", "dims"),
    "another dtype": (edit("cases", 0, "dtypes", "x", value="float16"), "case 0", "dtypes"),
    "another param": (edit("cases", 0, "params", "eps", value=1e-5), "case 0", "params"),
    "another kernel": (edit("cases", 0, "kernel", value="softmax"), "case 0", "kernel"),
    "another index": (edit("cases", 0, "index", value=1), "case 0", "index"),
    "a case twice": (lambda b: b["cases"].append(copy.deepcopy(b["cases"][0])), "case 2", "key_digest"),
    "cases exchanged": (lambda b: b["cases"].reverse(), "case 0", "index"),
    "another candidate of C": (arm("C", candidate={"width": 9}), "case 0", "arms.C.candidate"),
    "another plan of R": (arm("R", plan={}), "case 0", "arms.R.plan"),
    "another code of I": (arm("I", artifact_sha256=OTHER), "case 0", "arms.I.artifact_sha256"),
    "another trial of C": (arm("C", trial_id="trl_0_twin"), "case 0", "arms.C.trial_id"),
    "another trial of D": (arm("D", trial_id="trl_0_twin"), "case 0", "arms.D.trial_id"),
    "another candidate of D": (arm("D", candidate={"width": 9}), "case 0", "arms.D.candidate"),
    "another source of D": (arm("D", source_sha256=OTHER), "arm D", "source_sha256"),
    "A is not C": (arm("A", artifact_sha256=OTHER), "case 0", "arms.A.artifact_sha256"),
    "A is not measured": (arm("A", same_code_as="C"), "cases[0]", "arms.A.same_code_as"),
    "not the same code": (arm("R", same_code_as="C"), "case 0", "arms.R.same_code_as"),
    "the same code as itself": (arm("R", same_code_as="R"), "case 0", "arms.R.same_code_as"),
    "the incumbent left out": (edit("cases", 0, "arms", "I", value=None), "case 0", "arms.I"),
    "the incumbent catalog left out": (edit("catalogs", "incumbent", value=None), "case 0", "arms.I"),
    "torch left out": (edit("cases", 0, "arms", "T", value=None), "arm T", "arm"),
    "an arm too many": (edit("cases", 0, "arms", "X", value=None), "cases[0]", "arms.X"),
    "an arm removed": (lambda b: b["cases"][0]["arms"].pop("D"), "cases[0]", "arms.D"),
    "an edited catalog": (
        edit("catalogs", "reference", "entries", 0, "median_seconds", value=1.0), "catalogs.reference", "digest",
    ),
    "an edited entry, digest and all": (edit_entry, "case 0", "arms.C.candidate"),
    "a catalog's digest": (edit("catalogs", "incumbent", "digest", value=OTHER), "catalogs.incumbent", "digest"),
    "a newer catalog": (edit("catalogs", "candidate", "schema_version", value=2), "catalogs.candidate", "schema"),
    "no candidate catalog": (edit("catalogs", "candidate", value=None), "catalogs", "candidate"),
    "a catalog too many": (edit("catalogs", "canary", value=None), "catalogs", "canary"),
}  # fmt: skip
WHOLE: dict[str, tuple[Damage, str, str]] = {
    "rounds that do not balance": (edit("rounds", value=3), "bundle", "rounds"),
    "more rounds": (edit("rounds", value=8), "round 4", ""),
    "no rounds": (edit("rounds", value=0), "bundle", "rounds"),
    "rounds without end": (edit("rounds", value=2**60), "bundle", "rounds"),
    "another protocol": (edit("protocol", "samples", value=5), "protocol", "samples"),
    "a shorter warm-up": (edit("protocol", "warmup_seconds", value=0.0), "protocol", "warmup_seconds"),
    "a wider margin": (edit("margin_rule", "floor", value=0.1), "margin_rule", "floor"),
    "nothing inconclusive": (edit("margin_rule", "inconclusive_above", value=1), "margin_rule", "inconclusive_above"),
    "one metric": (edit("metrics", value=["device_batch"]), "bundle", "metrics"),
    "another device": (edit("scope", "device", "identity", "model", value="Another"), "scope", "device.digest"),
    "another device's digest": (edit("scope", "device", "digest", value=OTHER), "scope", "device.digest"),
    "another toolchain": (edit("scope", "toolchain", "flags", value=["-O2"]), "scope", "toolchain_fingerprint"),
    "more threads": (edit("scope", "threads", value=2), "catalogs.candidate entry", "key.threads"),
    "a sample taken cold": (on_record(cooled), "round 2, case 1, arm C", "timing.e2e_batch.cache_context"),
    "a cold cache": (edit("scope", "cache_context", value="cold"), "catalogs.candidate entry", "key.cache_context"),
    "a newer schema": (edit("schema_version", value=2), "bundle", "schema_version"),
    "a schema of old": (edit("schema_version", value=0), "bundle", "schema_version"),
    "another kind": (edit("kind", value="search"), "bundle", "kind"),
    "an unknown member": (edit("comment", value="fine"), "bundle", "comment"),
    "a part removed": (lambda b: b.pop("results"), "bundle", "results"),
    "a part of another type": (edit("records", value={}), "bundle", "records"),
    "no statements": (edit("statements", value=[]), "bundle", "statements"),
    "another verdict": (edit("results", "verdict", value="rejected"), "results", "verdict"),
    "a reason to accept": (edit("results", "reasons", value=["it is fast"]), "results", "reasons"),
    "another class": (
        edit("results", "cases", 0, "metrics", "e2e_batch", "torch", "class", value="mixed"),
        "results.cases[0]", "metrics.e2e_batch.torch.class",
    ),
    "another minimum": (
        edit("results", "cases", 0, "metrics", "e2e_batch", "torch", "ratio_min", value=1.0),
        "results.cases[0]", "metrics.e2e_batch.torch.ratio_min",
    ),
    "another margin": (results_case(margin=0.03), "results.cases[0]", "margin"),
    "another spread": (results_case(spread=0.0), "results.cases[0]", "spread"),
    "another state": (results_case(state="worse"), "results.cases[0]", "state"),
    "a result's shape": (results_case(dims={"rows": 1, "cols": 1}), "results.cases[0]", "dims"),
    "a result's key": (results_case(key_digest=OTHER), "results.cases[0]", "key_digest"),
    "a result removed": (lambda b: b["results"]["cases"].pop(), "results", "cases"),
    "results exchanged": (lambda b: b["results"]["cases"].reverse(), "results.cases[0]", "index"),
    "an opponent left out": (
        edit("results", "cases", 0, "metrics", "device_batch", "default", value=None),
        "results.cases[0]", "metrics.device_batch.default",
    ),
}  # fmt: skip
SEARCHES: dict[str, tuple[Damage, str, str]] = {
    "the search left out": (edit("search", value=[]), "search", ""),
    "the search twice": (lambda b: b["search"].append(copy.deepcopy(b["search"][0])), "search[1]", "job_id"),
    "another job": (edit("search", 0, "job_id", value="job_9"), "search", ""),
    "a trial twice": (
        lambda b: b["search"][0]["cases"][0]["trials"].append(copy.deepcopy(b["search"][0]["cases"][0]["trials"][4])),
        TRIAL, "id",
    ),
    "fewer enumerated": (edit("search", 0, "cases", 0, "enumerated", value=4), TRIAL, "enumerated"),
    "no reason": (edit("search", 0, "cases", 0, "trials", 3, "reason", value=None), TRIAL, "reason"),
    "no stage": (edit("search", 0, "cases", 0, "trials", 3, "stage", value=None), TRIAL, "stage"),
    "a stage that is none": (edit("search", 0, "cases", 0, "trials", 3, "stage", value="luck"), TRIAL, "stage"),
    "a trial that never ended": (
        edit("search", 0, "cases", 0, "trials", 3, "outcome", value="not_run"), TRIAL, "outcome",
    ),
    "a winner that was rejected": (a_trial(outcome="rejected", stage="timeout", reason="slow"), "case 0", "trial_id"),
    "a winner unchecked": (a_trial(checks_passed=False), TRIAL, "checks_passed"),
    "a winner over zero elements": (a_trial(elements_checked=0), TRIAL, "elements_checked"),
    "a winner without samples": (a_trial(samples_seconds=[], median_seconds=None), TRIAL, "samples_seconds"),
    "a winner's median": (a_trial(median_seconds=1e-6), TRIAL, "median_seconds"),
    "a winner's scalars": (a_trial(private_scalars=60), "case 0", "plan.private_scalars"),
    "a winner's candidate": (a_trial(candidate={"width": 4}), "case 0", "candidate"),
    "a winner outside the space": (a_trial(in_space=False), "case 0", "trial_id"),
    "samples not inherited": (
        edit("search", 0, "cases", 0, "trials", 2, "samples_seconds", 0, value=1.26e-5), TRIAL, "samples_seconds",
    ),
    "inherited from nobody": (edit("search", 0, "cases", 0, "trials", 2, "same_code_as", value="x"), TRIAL, "same"),
    "no default": (edit("search", 0, "cases", 0, "trials", 5, "is_default", value=False), TRIAL, "trials"),
    "two defaults": (edit("search", 0, "cases", 0, "trials", 0, "is_default", value=True), TRIAL, "trials"),
    "another case's search": (edit("search", 0, "cases", 0, "dims", "rows", value=7), "case 0", "trial_id"),
    "a search case removed": (lambda b: b["search"][0]["cases"].pop(0), "case 0", "trial_id"),
}  # fmt: skip
UNLISTED = {
    f"{part}: {name}": given
    for part, group in (("record", RECORDS), ("case", CASES), ("bundle", WHOLE), ("search", SEARCHES))
    for name, given in group.items()
}


@pytest.mark.parametrize(("damage", "where", "field"), UNLISTED.values(), ids=UNLISTED.keys())
def test_other_corruptions(damage: Damage, where: str, field: str) -> None:
    bundle = copy.deepcopy(PLAIN)
    damage(bundle)
    report = audit(make.sealed(bundle))
    told = "\n".join(report.lines())
    assert not report.ok
    assert named(report, where, field), told
    assert "stumbled" not in told


SHARED_CODE: dict[str, tuple[Damage, str, str]] = {
    "a record of an arm that is not measured": (
        lambda b: record(b, 0, 0, "R").update(arm="D"), "round 0, case 0, arm D", "arm",
    ),
    "other code of the same candidate": (
        lambda b: b["cases"][1]["arms"]["D"].update(candidate=b["cases"][1]["arms"]["R"]["candidate"]),
        "case 1", "arms.D.artifact_sha256",
    ),
    "other private scalars of the default": (
        lambda b: b["cases"][1]["arms"]["D"]["plan"].update(private_scalars=9), "case 1", "arms.D.plan.private_scalars",
    ),
    "one code measured twice": (arm("D", same_code_as=None), "case 0", "arms.D"),
    "a chain": (
        lambda b: b["cases"][0]["arms"].update(
            R={**b["cases"][0]["arms"]["R"], "same_code_as": "D"},
        ),
        "case 0", "same_code_as",
    ),
    "an arm that is not there": (
        lambda b: (arm("D", same_code_as="I")(b), edit("cases", 0, "arms", "I", value=None)(b)),
        "case 0", "D.same_code_as",
    ),
    "no build of an arm that is not measured": (
        lambda b: b["builds"].remove(
            next(one for one in b["builds"] if (one["round"], one["case"], one["arm"]) == (3, 0, "D"))
        ),
        "round 3", "builds",
    ),
    "a build of its own code": (lambda b: b["builds"][2].update(artifact_sha256=OTHER), "builds[2]", "artifact_sha256"),
    "code that differs": (arm("D", artifact_sha256=OTHER), "case 0", "arms.D.same_code_as"),
}  # fmt: skip


@pytest.mark.parametrize(("damage", "where", "field"), SHARED_CODE.values(), ids=SHARED_CODE.keys())
def test_corruptions_of_shared_code(damage: Damage, where: str, field: str) -> None:
    assert audit(SHARED).ok
    refuses(damage, where, field, base=SHARED)


def test_a_control_is_no_gain() -> None:
    bundle = make.bundle(same={"R": "C"})
    found = bundle["results"]["cases"][0]["metrics"]["device_batch"]["reference"]
    assert found == {"class": "control", "ratio_median": 1.0, "ratio_min": 1.0, "ratio_max": 1.0}
    refuses(
        edit("results", "cases", 0, "metrics", "device_batch", "reference", "class", value="positive"),
        "results.cases[0]",
        "metrics.device_batch.reference.class",
        base=bundle,
    )


def test_an_opponent_that_was_not_there() -> None:
    for name, how in (("incumbent", {"incumbent": False}), ("torch", {"torch": False})):
        refuses(
            edit("results", "cases", 0, "metrics", "device_batch", name, value=OPPONENT),
            "results.cases[0]",
            f"metrics.device_batch.{name}",
            base=make.bundle(**how),
        )


def test_a_rejection_is_explained() -> None:
    refuses(edit("results", "reasons", value=[]), "results", "reasons", base=make.bundle(times={"R": 0.9}))


def test_a_careful_forger_of_one_sample_is_caught_by_its_digest_alone() -> None:
    """The median stays; without the record's samples_sha256 nothing else would differ."""
    bundle = copy.deepcopy(PLAIN)
    replace_slow_sample(bundle)
    report = audit(make.sealed(bundle))
    assert [finding.field for finding in report.findings] == ["samples_sha256"]
