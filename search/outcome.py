"""What a candidate can do wrong is data, not an exception."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Stage = Literal["constraints", "compile", "resources", "runtime", "timeout", "correctness", "lost_worker"]

STAGES: tuple[Stage, ...] = (
    "constraints",
    "compile",
    "resources",
    "runtime",
    "timeout",
    "correctness",
    "lost_worker",
)


@dataclass(frozen=True, kw_only=True)
class Rejected:
    """A candidate that ends as rejected: where, why, and the numbers behind it.

    ``reason`` is a stable snake_case word; ``detail`` is JSON (numbers, limits, compiler output, the rule broken).
    """

    stage: Stage
    reason: str
    detail: Mapping[str, Any] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """JSON form: ``{"stage", "reason", "detail"}``."""
        return {"stage": self.stage, "reason": self.reason, "detail": dict(self.detail)}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Rejected:
        """Inverse of :meth:`document`."""
        return cls(stage=document["stage"], reason=document["reason"], detail=document["detail"])
