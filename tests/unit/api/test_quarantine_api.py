"""A device in quarantine is shown as such, and released through the API."""

from typing import Any

import httpx
import pytest

from tuner_service.api import schemas
from tuner_service.db.queries.devices import seen_device
from tuner_service.jobs.quarantine import Quarantines


@pytest.fixture
def device_id(served: Any) -> str:
    runtime = served.context.runtime
    (device,) = runtime.devices.values()
    with runtime.database.write() as session:
        seen_device(session, device.document())
    return str(device.id)


def test_a_device_in_quarantine_says_why_and_since_when(served: Any, http: httpx.Client, device_id: str) -> None:
    Quarantines(served.context.database).put(device_id, "a child could not be killed")
    (shown,) = http.get("/v1/devices").json()["items"]
    schemas.DeviceDocument.model_validate(shown)
    assert shown["available"] is False
    assert shown["quarantine"]["reason"] == "a child could not be killed"
    assert shown["quarantine"]["since"] in shown["reason"]
    released = http.post(f"/v1/devices/{device_id}/release")
    assert released.status_code == 200
    assert released.json()["available"] is True
    assert released.json()["quarantine"] is None
    assert http.post(f"/v1/devices/{device_id}/release").json() == released.json(), "once more changes nothing"


def test_an_unknown_device_cannot_be_released(http: httpx.Client) -> None:
    answer = http.post("/v1/devices/nowhere/release")
    assert answer.status_code == 404
    assert "nowhere" in answer.text
