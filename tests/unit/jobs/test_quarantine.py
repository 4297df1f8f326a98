"""A device that cannot be trusted is used no more until somebody releases it."""

from typing import Any

import pytest

from search.children.child import ChildSurvived
from search.device.spec import DeviceSpec
from search.errors import ChildFailed, DeviceContended
from tuner_service.db.engine import Database
from tuner_service.db.queries.devices import seen_device
from tuner_service.errors import NotFound
from tuner_service.jobs.quarantine import FAULTS_IN_A_ROW, DeviceFaults, Quarantines


@pytest.fixture
def quarantines(database: Database, device: DeviceSpec) -> Quarantines:
    with database.write() as session:
        seen_device(session, device.document())
    return Quarantines(database)


def test_a_child_that_cannot_be_killed_puts_its_device_into_quarantine_at_once(
    database: Database, quarantines: Quarantines, device: DeviceSpec
) -> None:
    DeviceFaults(quarantines).failed(device.id, "job_1", ChildSurvived("child 7 survived SIGKILL for 10 s"))
    assert "child 7 survived" in quarantines.known[device.id]["reason"]
    (shown,) = Quarantines(database).applied({device.id: device}).values()
    assert shown.available  # it has not looked yet
    another = Quarantines(database)
    another.refresh()
    (shown,) = another.applied({device.id: device}).values()
    assert not shown.available
    assert "child 7 survived" in str(shown.reason)
    assert quarantines.known[device.id]["since"] in str(shown.reason)


@pytest.mark.parametrize(
    ("faults", "is_quarantined"),
    [
        ([("job_1", ChildFailed("x"))] * 9, False),
        ([("job_1", ChildFailed("x"))] * (FAULTS_IN_A_ROW - 1) + [("job_2", ChildFailed("x"))], True),
        ([("job_1", ChildFailed("x"))] * (FAULTS_IN_A_ROW - 2) + [("job_2", ChildFailed("x"))], False),
        ([("job_1", DeviceContended("x")), ("job_2", DeviceContended("x"))] * 9, False),
        ([("job_1", ValueError("x")), ("job_2", ValueError("x"))] * 9, False),
        ([("job_1", ChildFailed("x")), ("job_2", None)] * 9, False),
        ([("job_1", ChildFailed("x")), ("job_2", ChildFailed("x"))] * 2, True),
    ],
    ids=["one job", "two jobs", "too few", "contended", "a bug", "one went well each time", "alternating"],
)
def test_faults_in_a_row_of_several_jobs_are_the_devices(
    quarantines: Quarantines, device: DeviceSpec, faults: list[Any], is_quarantined: bool
) -> None:
    counter = DeviceFaults(quarantines)
    for job_id, error in faults:
        if error is None:
            counter.worked(device.id)
        else:
            counter.failed(device.id, job_id, error)
    assert (device.id in quarantines.known) == is_quarantined


def test_release_lets_it_be_used_again(quarantines: Quarantines, device: DeviceSpec) -> None:
    quarantines.put(device.id, "it burns")
    quarantines.put(device.id, "it still burns")
    assert quarantines.known[device.id]["reason"] == "it burns"
    assert quarantines.release(device.id)
    assert quarantines.known == {}
    assert not quarantines.release(device.id)
    with pytest.raises(NotFound):
        quarantines.release("nowhere")
