"""The JSON documents of operating a deployment: quarantine; see ``schemas``."""

from __future__ import annotations

from pydantic import BaseModel, Field

from tuner_service.api.schemas import DeviceDocument


class QuarantineRequest(BaseModel):
    """Why a device is to be used no more."""

    reason: str = Field(description="One line for people.", min_length=1, max_length=500, examples=["the fan is loud"])


class ChangedDevice(DeviceDocument):
    """A device after it was put into quarantine, or released."""

    changed: bool = Field(description="False: it was so before, and nothing changed.")


REFERENCED: tuple[type[BaseModel], ...] = (QuarantineRequest,)
"""Models that operations refer to by name, without FastAPI knowing."""
