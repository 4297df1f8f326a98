"""The cases of an acceptance: exactly the catalog's entries, and every arm what its entry or its search says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from catalogs.auditing.book import Book, same, shown
from catalogs.auditing.entries import FrozenSet, entry_name
from catalogs.auditing.searches import Searched
from catalogs.auditing.shapes import ARMS, CASE, KERNEL_ARMS
from catalogs.canonical import canonical_json
from catalogs.format import Entry


@dataclass(frozen=True, kw_only=True)
class AuditedCase:
    """A case whose shape is right."""

    index: int
    name: str
    """For messages: ``case 2 (softmax rows:64, cols:256)``."""
    document: Mapping[str, Any]

    @property
    def arms(self) -> Mapping[str, Any]:
        """R, C, D, I, A, T → arm or None."""
        found: Mapping[str, Any] = self.document["arms"]
        return found

    @property
    def measured(self) -> tuple[str, ...]:
        """The arms that have a record in every round."""
        arms = ((name, self.arms[name]) for name in ARMS)
        return tuple(name for name, arm in arms if arm is not None and arm.get("same_code_as") is None)

    def stand_in(self, arm: str) -> str:
        """The arm whose records count for this arm."""
        return self.arms[arm].get("same_code_as") or arm

    @property
    def codes_are_sound(self) -> bool:
        """Whether every arm that names another names one that is measured."""
        return all(self.stand_in(name) in self.measured for name in ARMS if self.arms[name] is not None)

    def same_code(self, arm: str) -> bool:
        """Whether an arm's machine code is the candidate's."""
        return arm != "T" and bool(self.arms[arm]["artifact_sha256"] == self.arms["C"]["artifact_sha256"])


def read_cases(documents: list[Any], book: Book) -> dict[int, AuditedCase]:
    """Index → case, of those whose shape is right."""
    found: dict[int, AuditedCase] = {}
    for position, document in enumerate(documents):
        where = f"cases[{position}]"
        if not book.fits(where, document, CASE):
            continue
        dims = ", ".join(f"{name}:{extent}" for name, extent in document["dims"].items())
        case = AuditedCase(
            index=position, name=f"case {position} ({shown(document['kernel'] + ' ' + dims)})", document=document
        )
        book.equal(case.name, "index", document["index"], position, "its place among the cases")
        found[position] = case
        book.checked["cases"] += 1
        _check_codes(case, book)
    return found


def check_entries(
    cases: Mapping[int, AuditedCase], frozen: FrozenSet, searched: Mapping[str, Searched], book: Book
) -> None:
    """That cases and entries are one to one, and each arm is what was frozen or searched."""
    candidate = frozen.candidate
    if candidate is None:
        return
    seen: dict[str, AuditedCase] = {}
    for case in cases.values():
        key = case.document["key_digest"]
        entry = candidate.entries.get(key)
        if entry is None:
            book.find(
                case.name, f"{key} is no key of catalogs.candidate: the case or the key was edited", field="key_digest"
            )
            continue
        if key in seen:
            book.find(case.name, f"the key of {seen[key].name}: a case is there twice", field="key_digest")
            continue
        seen[key] = case
        identity = {"kernel": entry.kernel, "params": entry.params, "dims": entry.key.dims, "dtypes": entry.key.dtypes}
        for field, wanted in identity.items():
            book.equal(case.name, field, case.document[field], _plain(wanted), "the frozen entry's")
        _check_arms(case, entry, frozen, book)
        _check_search(case, entry, searched, book)
    for key in candidate.entries.keys() - seen.keys():
        book.find("cases", f"none for {entry_name(candidate.entries[key])} of catalogs.candidate: a case is missing")


def _check_codes(case: AuditedCase, book: Book) -> None:
    """Arms with one machine code are measured once, and the others name the one that is."""
    arms = {name: case.arms[name] for name in KERNEL_ARMS if case.arms[name] is not None}
    for name, arm in arms.items():
        other = arm["same_code_as"]
        if other is None:
            continue
        if other not in arms or other == name:
            book.find(case.name, f"{other} is no other arm of the case", field=f"arms.{name}.same_code_as")
        elif arms[other]["same_code_as"] is not None:
            book.find(case.name, f"{other} is not measured itself", field=f"arms.{name}.same_code_as")
        elif arms[other]["artifact_sha256"] != arm["artifact_sha256"]:
            book.find(case.name, f"{other} has other machine code", field=f"arms.{name}.same_code_as")
    known: dict[bytes, str] = {}
    for name, arm in arms.items():
        if name == "I":
            continue  # it is its own catalog's, which may be of another time
        first = known.setdefault(canonical_json(arm["candidate"]), name)
        for field in ("plan", "source_sha256", "artifact_sha256"):
            if first != name:
                what = f"that of {first}, which has the same candidate"
                book.equal(case.name, f"arms.{name}.{field}", arm[field], arms[first][field], what)
    timed: dict[str, str] = {}
    for name, arm in arms.items():
        if arm["same_code_as"] is None:
            first = timed.setdefault(arm["artifact_sha256"], name)
            if first != name:
                book.find(case.name, f"the machine code of {first}, yet not measured once", field=f"arms.{name}")
    for field in ("trial_id", "candidate", "plan", "source_sha256", "artifact_sha256"):
        book.equal(case.name, f"arms.A.{field}", case.arms["A"][field], case.arms["C"][field], "that of C")


def _check_arms(case: AuditedCase, entry: Entry, frozen: FrozenSet, book: Book) -> None:
    _check_arm(case, "C", entry, book)
    if frozen.reference is not None:
        reference = frozen.reference.entries.get(entry.key.digest)
        if reference is not None:  # that it is missing was found when the catalogs were read
            _check_arm(case, "R", reference, book)
    arm, incumbent = case.arms["I"], frozen.incumbent
    if incumbent is None:
        if arm is not None:
            book.find(case.name, "there is no incumbent catalog", field="arms.I")
        return
    other = incumbent.beside(entry)
    if arm is None:
        if entry.key.digest in incumbent.entries:
            book.find(case.name, "missing, though the incumbent catalog has the key", field="arms.I")
    elif other is None:
        book.find(case.name, "the incumbent catalog has no entry for the key", field="arms.I")
    else:
        _check_arm(case, "I", other, book, code=other.key.toolchain == entry.key.toolchain)


def _check_arm(case: AuditedCase, name: str, entry: Entry, book: Book, *, code: bool = True) -> None:
    arm = case.arms[name]
    wanted: dict[str, Any] = {"trial_id": entry.trial_id, "candidate": entry.candidate, "plan": entry.plan}
    if code:
        wanted |= {field: entry.code.get(field) for field in ("source_sha256", "artifact_sha256")}
    for field, value in wanted.items():
        book.equal(case.name, f"arms.{name}.{field}", arm[field], _plain(value), "the frozen entry's")
    book.checked["arms"] += 1


def _check_search(case: AuditedCase, entry: Entry, searched: Mapping[str, Searched], book: Book) -> None:
    for name in ("C", "R"):
        arm = case.arms[name]
        found = searched.get(arm["trial_id"])
        where = f"{case.name} arm {name}"
        if found is None:
            book.find(where, f"trial {shown(arm['trial_id'])} is in no search bundle", field="trial_id")
            continue
        trial = found.trial
        if trial["outcome"] != "measured" or not trial["in_space"]:
            book.find(where, f"trial {shown(arm['trial_id'])} is no measured trial of the space", field="trial_id")
        book.equal(where, "candidate", arm["candidate"], trial["candidate"], "the trial's in the search bundle")
        for field in ("kernel", "dims", "params", "dtypes"):
            if field in found.case:
                book.equal(where, f"trial_id ({field})", case.document[field], found.case[field], "the search case's")
        if "private_scalars" in arm["plan"]:
            scalars = trial["private_scalars"]
            book.equal(where, "plan.private_scalars", arm["plan"]["private_scalars"], scalars, "the trial's")
    chosen = searched.get(case.arms["C"]["trial_id"])
    if chosen is None:
        return
    if chosen.job_id != entry.job_id:
        book.find(case.name, f"its trial is one of job {shown(chosen.job_id)}, not {shown(entry.job_id)}")
    default, arm = chosen.default, case.arms["D"]
    if default is not None:
        book.equal(case.name, "arms.D.trial_id", arm["trial_id"], default["id"], "the search's untuned default")
        if "private_scalars" in arm["plan"]:
            stated, scalars = arm["plan"]["private_scalars"], default["private_scalars"]
            book.equal(case.name, "arms.D.plan.private_scalars", stated, scalars, "the search's")
        if not same(arm["candidate"], default["candidate"]):
            book.find(case.name, "not the candidate of the search's untuned default", field="arms.D.candidate")
        if default["outcome"] != "measured":
            book.find(case.name, "the search's untuned default was not measured", field="arms.D.trial_id")


def _plain(value: Any) -> Any:
    """A mapping as the dict that JSON gave."""
    return dict(value) if isinstance(value, Mapping) else value
