"""The lookup key: everything that must be equal for a frozen winner to be served. Complete, so nothing is guessed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from catalogs import fields as check
from catalogs.canonical import sha256_hex
from catalogs.errors import FormatError


class AnyToolchain:
    """Says out loud that a lookup accepts a winner found with any toolchain."""

    def __repr__(self) -> str:
        return "ANY_TOOLCHAIN"

    def __reduce__(self) -> str:
        return "ANY_TOOLCHAIN"  # copies and pickles are the one there is: it is compared by identity


ANY_TOOLCHAIN: Final = AnyToolchain()


@dataclass(frozen=True, kw_only=True)
class LookupKey:
    """Program × shape × dtypes × device × toolchain × how it was measured."""

    program_digest: str
    dims: Mapping[str, int]
    dtypes: Mapping[str, str]
    device: str
    """Device identity digest (``catalogs.device``)."""
    toolchain: str
    """Toolchain fingerprint (sha256 of its description)."""
    threads: int = 1
    metric: str = "device_batch"
    cache_context: str = "warm"
    aliasing: str = "none"
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Room for later key fields; empty ones leave the digest unchanged."""

    def document(self) -> dict[str, Any]:
        """JSON form."""
        out = {**vars(self), "dims": dict(self.dims), "dtypes": dict(self.dtypes)}
        if not self.extra:
            del out["extra"]
        return out

    @property
    def digest(self) -> str:
        """sha256 (hex) of the canonical JSON form."""
        return sha256_hex(self.document())

    @classmethod
    def from_document(cls, document: Any, *, path: str = "key") -> LookupKey:
        """Inverse of :meth:`document`.

        Raises FormatError naming a field that is unknown, missing or of a wrong type. An unknown key field is never
        ignored: it may be the one in which two winners differ.
        """
        check.an_object(document, path)
        unknown = sorted(set(document) - set(cls.__dataclass_fields__))
        if unknown:
            raise FormatError(f"{check.under(path, unknown[0])}: not a key field of this version")
        check.all_present(document, ("program_digest", "dims", "dtypes", "device", "toolchain"), path)
        for name, extent in check.an_object(document["dims"], f"{path}.dims").items():
            check.an_integer(extent, f"{path}.dims.{name}", least=1)
        check.texts(document["dtypes"], f"{path}.dtypes")
        for name in ("program_digest", "device", "toolchain", "metric", "cache_context", "aliasing"):
            if name in document:
                check.a_text(document[name], f"{path}.{name}")
        check.an_integer(document.get("threads", 1), f"{path}.threads", least=1)
        check.an_object(document.get("extra", {}), f"{path}.extra")
        return cls(**document)

    def flat(self) -> dict[str, Any]:
        """Every field by a dotted name (``dims.rows``), for comparing two keys."""
        out: dict[str, Any] = {}
        for name, value in self.document().items():
            if isinstance(value, Mapping):
                out.update({f"{name}.{inner}": value[inner] for inner in sorted(value)})
            else:
                out[name] = value
        return out
