"""The Entry: one frozen winner with everything needed to explain and rebuild it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from catalogs import fields as check
from catalogs.canonical import canonical_json, sha256_hex
from catalogs.key import LookupKey

__all__ = ["SCHEMA_VERSION", "Entry", "canonical_json", "sha256_hex"]

SCHEMA_VERSION = 1
"""Readers accept documents of their own version and older; a newer one is refused by number."""

_OBJECTS = ("candidate", "plan", "code", "protocol", "numerics")
_TEXTS = ("kernel", "samples_sha256", "job_id", "trial_id")


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A winner: its key, the complete candidate, plan and code facts, and where the evidence is.

    Entries are shared by every lookup of a process: their mappings must not be mutated.
    """

    key: LookupKey
    kernel: str
    params: Mapping[str, float | int]
    candidate: Mapping[str, Any]
    plan: Mapping[str, Any]
    code: Mapping[str, Any]
    protocol: Mapping[str, Any]
    numerics: Mapping[str, Any]
    median_seconds: float
    samples_sha256: str
    tie_set: tuple[str, ...]
    job_id: str
    trial_id: str
    artifact: Mapping[str, Any] | None = None
    """The compiled library: ``library_sha256``, ``symbol``, ``arguments``, and of a GPU's ``launch`` and
    ``architecture``. None: rebuild it from candidate and plan."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Members that this version does not know: kept, so that the digest stays, and otherwise ignored."""
    schema_version: int = SCHEMA_VERSION

    def document(self) -> dict[str, Any]:
        """JSON form; its canonical bytes give :attr:`digest`."""
        members = {name: value for name, value in vars(self).items() if name != "extra"}
        members["key"] = self.key.document()
        members["tie_set"] = list(self.tie_set)
        if self.artifact is None:
            del members["artifact"]
        return {**self.extra, "metric": self.key.metric, **members}

    @property
    def digest(self) -> str:
        """sha256 (hex) of the entry's canonical JSON."""
        return sha256_hex(self.document())

    @classmethod
    def from_document(cls, document: Any, *, path: str = "") -> Entry:
        """Inverse of :meth:`document`. Raises FormatError naming the field that is missing, wrong or too new."""
        check.an_object(document, path)
        check.all_present(document, ("schema_version",), path)
        check.a_known_version(document["schema_version"], check.under(path, "schema_version"), SCHEMA_VERSION)
        known = [name for name in cls.__dataclass_fields__ if name != "extra"]
        check.all_present(document, (name for name in known if name != "artifact"), path)
        for name in _OBJECTS:
            check.an_object(document[name], check.under(path, name))
        for name in _TEXTS:
            check.a_text(document[name], check.under(path, name))
        check.numbers(document["params"], check.under(path, "params"))
        check.a_number(document["median_seconds"], check.under(path, "median_seconds"))
        for position, trial in enumerate(check.a_list(document["tie_set"], check.under(path, "tie_set"))):
            check.a_text(trial, f"{check.under(path, 'tie_set')}[{position}]")
        if document.get("artifact") is not None:
            _check_artifact(document["artifact"], check.under(path, "artifact"))
        members = {name: document[name] for name in known if name in document}
        members["key"] = LookupKey.from_document(document["key"], path=check.under(path, "key"))
        if document.get("metric", members["key"].metric) != members["key"].metric:
            check.refuse(check.under(path, "metric"), document["metric"], f"the key's, {members['key'].metric!r}")
        members["tie_set"] = tuple(document["tie_set"])
        extra = {k: v for k, v in document.items() if k not in members and k != "metric"}
        return cls(**members, extra=extra)


def _check_artifact(value: Any, path: str) -> None:
    check.all_present(check.an_object(value, path), ("library_sha256", "symbol", "arguments"), path)
    check.a_sha256(value["library_sha256"], f"{path}.library_sha256")
    check.a_text(value["symbol"], f"{path}.symbol")
    for position, argument in enumerate(check.a_list(value["arguments"], f"{path}.arguments")):
        check.texts(argument, f"{path}.arguments[{position}]")
    if "architecture" in value:
        check.a_text(value["architecture"], f"{path}.architecture")
    if "launch" in value:
        for name, number in check.an_object(value["launch"], f"{path}.launch").items():
            check.an_integer(number, f"{path}.launch.{name}", least=0)
