"""One of any number of processes advances jobs: whose session holds the lock. The others only announce."""

import threading
from collections.abc import Callable, Iterator

import pytest
from postgres_cluster import PostgresCluster

from tuner_service.db.engine import Database
from tuner_service.db.leadership import Leadership, announce_wake

PATIENCE_SECONDS = 30.0


class Process:
    """What one API process would have: a database of its own, and the wish to lead."""

    def __init__(self, url: str) -> None:
        self.database = Database(url)
        self.heard: list[str] = []
        self.changed = threading.Condition()
        self.gained = 0
        self.leadership = Leadership(self.database, gained=self._gain, heard=self._hear)

    def _gain(self) -> None:
        with self.changed:
            self.gained += 1
            self.changed.notify_all()

    def _hear(self, job_id: str) -> None:
        with self.changed:
            self.heard.append(job_id)
            self.changed.notify_all()

    def wait(self, condition: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, PATIENCE_SECONDS)

    def close(self) -> None:
        self.leadership.close()
        self.database.close()


def until(condition: Callable[[], bool]) -> bool:
    pause = threading.Event()
    for _ in range(int(PATIENCE_SECONDS / 0.02)):
        if condition():
            return True
        pause.wait(0.02)
    return False


@pytest.fixture
def process(postgres_url: str) -> Iterator[Callable[[], Process]]:
    made: list[Process] = []

    def make() -> Process:
        made.append(Process(postgres_url))
        made[-1].leadership.start()
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_one_leads_and_hears_and_the_next_takes_over(process: Callable[[], Process]) -> None:
    first = process()
    first.wait(lambda: first.gained == 1)
    second = process()
    announce_wake(second.database, "job_1")
    first.wait(lambda: first.heard == ["job_1"])
    assert first.leadership.leads
    assert not second.leadership.leads
    first.close()
    second.wait(lambda: second.gained == 1)
    assert not first.leadership.leads
    assert second.leadership.leads


def test_the_lead_is_taken_again_after_the_database_was_restarted(
    process: Callable[[], Process], postgres: PostgresCluster
) -> None:
    both = [process(), process()]
    both[0].wait(lambda: sum(one.gained for one in both) == 1)
    postgres.stop("immediate")
    try:
        assert until(lambda: not any(one.leadership.leads for one in both))
    finally:
        postgres.start()
    assert until(lambda: any(one.leadership.leads for one in both))
    assert sum(one.leadership.leads for one in both) == 1
    assert sum(one.gained for one in both) >= 2
