"""Ways to damage a bundle, and to see that it is refused with the place named. Imported by path."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import bundle_factory as make

from catalogs.audit import Report, audit

Bundle = dict[str, Any]
Damage = Callable[[Bundle], object]
PLAIN = make.bundle()
OTHER = make.sha("another thing")


def record(bundle: Bundle, number: int, case: int, arm: str) -> dict[str, Any]:
    return next(r for r in bundle["records"] if (r["round"], r["case"], r["arm"]) == (number, case, arm))


def named(report: Report, where: str, field: str = "", message: str = "") -> bool:
    return any(where in f.where and field in f.field and message in f.message for f in report.findings)


def refuses(damage: Damage, where: str, field: str = "", message: str = "", base: Bundle = PLAIN) -> None:
    bundle = copy.deepcopy(base)
    damage(bundle)
    naive = audit(bundle)
    assert named(naive, "bundle", "sha256", "edited"), "the digest covers everything"
    report = audit(make.sealed(bundle))
    told = "\n".join(report.lines())
    assert not report.ok
    assert named(report, where, field, message), told
    assert "stumbled" not in told


def edit(*path: Any, value: Any) -> Damage:
    """Set a member, given by its path."""

    def damage(bundle: Bundle) -> None:
        at: Any = bundle
        for step in path[:-1]:
            at = at[step]
        at[path[-1]] = value

    return damage
