"""The demo's second half: freeze winners, accept them in a replay, audit the evidence, promote, and look them up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import catalogs
from catalogs import CatalogError, Hit
from catalogs.audit import audit
from catalogs.client import Source
from tuner_service.cli.commands.catalog_accept import follow_acceptance, show_acceptance, write_evidence
from tuner_service.cli.output import print_line, print_table, say
from tuner_service.cli.words import candidate_words, case_words
from tuner_service.client import ApiProblem, Client, Document

ALIAS = "prod"
ATTEMPTS = 2
"""Replays at most: a busy machine makes one inconclusive. Every one is kept, and none is promoted unaccepted."""
EVIDENCE_FILE = "evidence.json"
STORE_FOLDER = "catalogs"


@dataclass(kw_only=True)
class Catalogued:
    """What came of it, for the summary; ``wrong`` is empty when all went well.

    A verdict of ``rejected`` is not wrong: refusing what it cannot vouch for is the gate's work, and on a busy machine
    two timings of the same code differ too much to vouch for anything. Nothing is promoted then, and it is said so.
    """

    frozen: Document | None = None
    acceptances: list[Document] = field(default_factory=list)
    audited: str | None = None
    promoted: str | None = None
    found: list[dict[str, Any]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def document(self) -> dict[str, Any]:
        """JSON form."""
        return {
            "candidate": self.frozen and self.frozen["candidate"]["digest"],
            "reference": self.frozen and self.frozen["reference"]["digest"],
            "acceptances": [
                {name: one[name] for name in ("id", "state", "verdict", "reasons", "evidence_sha256")}
                for one in self.acceptances
            ],
            "audit": self.audited,
            "promoted": self.promoted,
            "found": self.found,
        }


def catalog_winners(
    client: Client, job: Document, device: Document, where: Path, *, at_most: int, quiet: bool
) -> Catalogued:
    """One case of each kernel (``at_most`` of them) through the whole of it: the first shape that has a winner."""
    done = Catalogued()
    chosen = _first_of_each_kernel(job["cases"])[:at_most]
    if not chosen:
        done.wrong.append("there is no winner to freeze")
        return done
    try:
        asked = [{name: case[name] for name in ("kernel", "params", "dims", "dtypes")} for case in chosen]
        done.frozen = client.freeze([job["id"]], cases=asked)
    except ApiProblem as problem:
        done.wrong.append(f"the winners could not be frozen: {problem}")
        return done
    digest = done.frozen["candidate"]["digest"]
    say(f"POST /v1/catalogs → candidate {digest[:12]}…, reference {done.frozen['reference']['digest'][:12]}…")
    done.wrong += [f"{case_words(left)} was not frozen: {left['reason']}" for left in done.frozen["left_out"]]
    for _ in range(ATTEMPTS):
        acceptance = follow_acceptance(client, client.accept(digest, alias=ALIAS)["id"], quiet=quiet)
        done.acceptances.append(acceptance)
        if not quiet:
            print_line()
            show_acceptance(acceptance)
        if acceptance["verdict"] is None:
            done.wrong.append(f"the acceptance {acceptance['state']}: {acceptance['error']}")
            return done
        if acceptance["verdict"] == "accepted":
            break
    _audit(client, done, where / EVIDENCE_FILE, quiet=quiet)
    _promote(client, done, digest)
    _look_up(client, done, chosen, device, where / STORE_FOLDER, quiet=quiet)
    return done


def _first_of_each_kernel(cases: Sequence[Document]) -> list[Document]:
    first: dict[str, Document] = {}
    for case in cases:
        if case.get("winner") is not None and case.get("reference") is not None:
            first.setdefault(case["kernel"], case)
    return list(first.values())


def _audit(client: Client, done: Catalogued, path: Path, *, quiet: bool) -> None:
    write_evidence(client, done.acceptances[-1]["id"], path)
    report = audit(path.read_bytes())
    done.audited = "passed" if not report.findings else f"{len(report.findings)} findings"
    done.wrong += [f"audit: {finding}" for finding in report.findings[:5]]
    if not quiet:
        print_line()
        print_line(f"python -m catalogs.audit {path} → {done.audited}")


def _promote(client: Client, done: Catalogued, digest: str) -> None:
    if done.acceptances[-1]["verdict"] == "accepted":
        try:
            client.promote(ALIAS, digest)
        except ApiProblem as problem:
            done.wrong.append(f"the accepted catalog could not be promoted: {problem}")
            return
        done.promoted = digest
        say(f"PUT /v1/aliases/{ALIAS} → {digest[:12]}…")
        return
    reasons = "; ".join(done.acceptances[-1]["reasons"])
    kept = "nothing is promoted" if done.acceptances[-1]["incumbent"] is None else f"{ALIAS} keeps its catalog"
    say(f"NOT PROMOTED: {len(done.acceptances)} replays did not accept the catalog, so {kept}: {reasons}")


def _look_up(
    client: Client, done: Catalogued, chosen: Sequence[Document], device: Document, store: Path, *, quiet: bool
) -> None:
    """As JIT code does it: a local store pulled from the alias, then a lookup without the service.

    Without a promotion there is no alias to pull: the frozen catalog itself is looked up, by its digest.
    """
    source = f"{client.url}/v1/aliases/{ALIAS}"
    fingerprint = device["toolchain_fingerprint"]
    try:
        if done.promoted is None and done.acceptances[-1]["incumbent"] is None:
            assert done.frozen is not None
            digest = done.frozen["candidate"]["digest"]
            service = Source(source)
            source = f"{client.url}/v1/catalogs/{digest}"
            opened = catalogs.open(service.catalog(digest))
        else:
            opened = catalogs.open(store, source, toolchain=fingerprint)
            opened.refresh()
    except CatalogError as error:
        done.wrong.append(f"{source} could not be opened: {error}")
        return
    if done.promoted is not None and opened.digest != done.promoted:
        done.wrong.append(f"{source} gives catalog {opened.digest}, not {done.promoted}")
    rows = []
    for case in chosen:
        asked = {name: case[name] for name in ("kernel", "params", "dims", "dtypes")}
        answer = opened.lookup(**asked, device=catalogs.this_device(), toolchain=fingerprint)
        if isinstance(answer, Hit):
            entry = answer.entry
            done.found.append({"kernel": entry.kernel, "dims": dict(entry.key.dims), "trial_id": entry.trial_id})
            rows.append([case_words(case), candidate_words(entry.candidate), entry.digest[:12] + "…"])
        else:
            done.wrong.append(f"catalogs.open(…).lookup({case_words(case)}) misses: {answer.reason}")
    if not quiet:
        print_line()
        print_table([f"catalogs.open(…, {source.removeprefix(client.url)[:24]})", "answers", "entry"], rows)
