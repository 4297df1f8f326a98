"""JSON of what goes on in a job now."""

from __future__ import annotations

from pydantic import BaseModel, Field


class InFlight(BaseModel):
    """A kind of step that was handed out: its tasks run, or wait for a compile slot or the device."""

    step: str = Field(description="`build`, `measure`, `check`, `share_code`, `finals`, `baseline`, `fresh_build`…")
    trials: int = Field(description="How many trials its tasks are about.")
