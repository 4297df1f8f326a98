"""A device in quarantine is shown as such, and released through the API."""

from typing import Any

import httpx
import pytest

from tuner_service.api import schemas, schemas_operations
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
    schemas_operations.ChangedDevice.model_validate(released.json())
    again = http.post(f"/v1/devices/{device_id}/release").json()
    assert again == released.json() | {"changed": False}, "once more changes nothing, and says so"


def test_a_device_is_taken_out_of_use_by_hand(http: httpx.Client, device_id: str) -> None:
    put = http.post(f"/v1/devices/{device_id}/quarantine", json={"reason": " the fan is loud "})
    assert put.status_code == 200
    schemas_operations.ChangedDevice.model_validate(put.json())
    assert (put.json()["changed"], put.json()["available"]) == (True, False)
    assert put.json()["quarantine"]["reason"] == "the fan is loud"
    again = http.post(f"/v1/devices/{device_id}/quarantine", json={"reason": "it smells"})
    assert again.json() == put.json() | {"changed": False}, "the first reason stays"
    assert http.post(f"/v1/devices/{device_id}/release").json()["changed"] is True


@pytest.mark.parametrize("reason", [None, "", "  ", 3, "two\nlines", "x" * 501])
def test_a_quarantine_without_a_reason_for_people_is_refused(http: httpx.Client, device_id: str, reason: Any) -> None:
    answer = http.post(f"/v1/devices/{device_id}/quarantine", json={} if reason is None else {"reason": reason})
    assert answer.status_code == 422
    assert [fault["field"] for fault in answer.json()["errors"]] == ["/reason"]
    assert http.get(f"/v1/devices/{device_id}").json()["quarantine"] is None


@pytest.mark.parametrize("what", ["release", "quarantine"])
def test_an_unknown_device_is_not_found(http: httpx.Client, what: str) -> None:
    answer = http.post(f"/v1/devices/nowhere/{what}", json={"reason": "it is not there"})
    assert answer.status_code == 404
    assert "nowhere" in answer.text
