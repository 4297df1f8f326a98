"""The Book: what an audit found wrong, and how much it looked at."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from catalogs.auditing.kinds import Kind

CHECKS_RECORDED_CORRECTNESS = (
    "This audit checks the recorded correctness (each record's checks, with non-zero counts), not the arrays again."
)
_FINDINGS_KEPT = 200


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that is wrong, and where."""

    where: str
    """The record, case, catalog or other part, as people say it: ``records[17] (round 1, case 2, arm R)``."""
    field: str
    """The member of that part; empty when it is about the part as a whole."""
    message: str

    def __str__(self) -> str:
        return f"{self.where}: {self.field}: {self.message}" if self.field else f"{self.where}: {self.message}"


@dataclass(frozen=True, kw_only=True)
class Report:
    """What came of an audit: refused when there is a finding."""

    subject: str
    """What was audited: kind and id."""
    findings: tuple[Finding, ...]
    """The first ones, in the order of the bundle's parts."""
    findings_total: int
    checked: Mapping[str, int]
    """What was looked at → how many."""

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return self.findings_total == 0

    def document(self) -> dict[str, Any]:
        """JSON form."""
        return {
            "subject": self.subject,
            "ok": self.ok,
            "findings": [dict(vars(finding)) for finding in self.findings],
            "findings_total": self.findings_total,
            "checked": dict(self.checked),
            "note": CHECKS_RECORDED_CORRECTNESS,
        }

    def lines(self) -> Iterator[str]:
        """The report for people."""
        if self.ok:
            yield f"{self.subject}: nothing found"
        else:
            yield f"{self.subject}: REFUSED, {self.findings_total:,} found"
        for finding in self.findings:
            yield f"  {finding}"
        if self.findings_total > len(self.findings):
            yield f"  … and {self.findings_total - len(self.findings)} more"
        if self.checked:
            yield "checked: " + ", ".join(f"{what} {count:,}" for what, count in self.checked.items())
        yield CHECKS_RECORDED_CORRECTNESS


class Book:
    """Collects findings and counts while an audit goes on."""

    def __init__(self) -> None:
        self.subject = "bundle"
        self.checked: Counter[str] = Counter()
        self._findings: list[Finding] = []
        self._total = 0

    def find(self, where: str, message: str, *, field: str = "") -> None:
        """Write down what is wrong."""
        self._total += 1
        if len(self._findings) < _FINDINGS_KEPT:
            self._findings.append(Finding(where=where, field=field, message=message))

    def fits(self, where: str, document: Any, kind: Kind) -> bool:
        """Whether a document has the shape it must have; what does not fit is written down."""
        before = self._total
        for field, message in kind(document, ""):
            self.find(where, message, field=field)
        return self._total == before

    def equal(self, where: str, field: str, stated: Any, wanted: Any, what: str) -> bool:
        """Whether a member is what it must be; if not, both are written down."""
        if same(stated, wanted):
            return True
        self.find(where, f"{shown(stated)} is not {what}, {shown(wanted)}", field=field)
        return False

    def report(self) -> Report:
        """What was found so far."""
        return Report(
            subject=self.subject,
            findings=tuple(self._findings),
            findings_total=self._total,
            checked=dict(self.checked),
        )


def same(one: Any, other: Any) -> bool:
    """Whether two JSON values are the same: numbers by value, and true is not 1."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(same(*pair) for pair in zip(one, other, strict=True))
    return bool(one == other)


def shown(value: Any) -> str:
    """A value for a message, shortened."""
    text = repr(value)
    return text if len(text) <= 80 else text[:79] + "…"
