"""Children between two uses: taken by the next who asks for the like, ended when nobody does."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator

import pytest

from search.children.child import Child
from search.lowering.warm import WarmChildren

PATIENCE_SECONDS = 30.0


@pytest.fixture
def child() -> Iterator[Child]:
    """A lowering child that was asked nothing, so that it has imported nothing."""
    started = Child.start("search.lowering.child")
    yield started
    started.kill()


@pytest.fixture
def warm() -> Iterator[WarmChildren]:
    kept = WarmChildren(idle_seconds=1000)
    yield kept
    kept.close()


def test_a_kept_child_is_taken_once_and_only_for_its_key(warm: WarmChildren, child: Child) -> None:
    warm.keep("key", child)
    assert warm.take("another key") is None
    assert warm.take("key") is child
    assert child.alive
    assert warm.take("key") is None


def test_a_child_that_died_meanwhile_is_not_given_out(warm: WarmChildren, child: Child) -> None:
    warm.keep("key", child)
    os.kill(child.pid, 9)
    while child.alive:
        time.sleep(0.01)
    assert warm.take("key") is None


def test_one_of_a_key_is_enough(warm: WarmChildren, child: Child) -> None:
    second = Child.start("search.lowering.child")
    warm.keep("key", child)
    warm.keep("key", second)
    assert not child.alive
    assert warm.take("key") is second
    second.kill()


def test_nobody_waits_for_ever(child: Child) -> None:
    warm = WarmChildren(idle_seconds=0.05)
    before = set(threading.enumerate())
    warm.keep("key", child)
    (timer,) = set(threading.enumerate()) - before
    timer.join(PATIENCE_SECONDS)  # a child is one thread's at a time
    assert not timer.is_alive()
    assert not child.alive
    assert warm.take("key") is None


def test_closing_ends_them(warm: WarmChildren, child: Child) -> None:
    warm.keep("key", child)
    warm.close()
    assert not child.alive
    assert warm.take("key") is None


def test_a_fork_leaves_them_to_whom_they_belong(
    warm: WarmChildren, child: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    warm.keep("key", child)
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: -1)
        assert warm.take("key") is None
    assert child.alive
