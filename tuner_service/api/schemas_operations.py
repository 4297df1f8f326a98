"""The JSON documents of operating a deployment: quarantine, workers; see ``schemas``."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from tuner_service.api.schemas import DeviceDocument, Document


class QuarantineRequest(BaseModel):
    """Why a device is to be used no more."""

    reason: str = Field(description="One line for people.", min_length=1, max_length=500, examples=["the fan is loud"])


class ChangedDevice(DeviceDocument):
    """A device after it was put into quarantine, or released."""

    changed: bool = Field(description="False: it was so before, and nothing changed.")


class WorkerTask(Document):
    """A task that a worker has taken."""

    job_id: str
    queue: Literal["compile", "device"]
    device_id: str = Field(description="The device that it holds, or compiles for.")
    step: str
    begun: bool = Field(description="False: it waits for its host to become quiet.")


class WorkerDocument(Document):
    """A worker process, while it is remembered."""

    id: str = Field(description="`host:pid:random`, as in `worker` of a trial and in logs.")
    host: str
    pid: int
    state: Literal["running", "draining", "full", "lost", "gone"] = Field(
        description="`full`: no space left on its disk, it takes nothing. `lost`: silent for "
        "`TUNER_WORKER_LOST_SECONDS`; after an hour of silence, `gone`."
    )
    version: str
    devices: list[str] = Field(description="Ids of the devices that it offers.")
    compile_keys: list[str] = Field(description="What it compiles for.")
    compile_slots: int
    tasks: list[WorkerTask] = Field(description="What it does now.")
    started_at: str
    heartbeat_at: str
    silent_seconds: float = Field(description="Since its last heartbeat, by the database's clock.")


class WorkerPage(Document):
    """Workers, the last started first."""

    items: list[WorkerDocument]
    next: str | None
    total: int


REFERENCED: tuple[type[BaseModel], ...] = (QuarantineRequest,)
"""Models that operations refer to by name, without FastAPI knowing."""
