"""The client: addresses, queries and pages it asks for, and what it raises."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tuner_service.client import ApiProblem, Client, ServiceUnreachable


def client(handler: Callable[[httpx.Request], httpx.Response]) -> Client:
    return Client("http://127.0.0.1:1", transport=httpx.MockTransport(handler))


def test_a_problem_keeps_every_field_with_value_and_allowed() -> None:
    problem = {
        "title": "Invalid input",
        "detail": "nothing was created",
        "errors": [
            {"field": "/space/width", "value": [3], "message": "not a power of two", "allowed": [1, 2, 4]},
            {"field": "/device", "value": "tpu", "message": "no such device", "allowed": ["cpu"]},
            {"field": "/baselines", "value": ["torch_eager"], "message": "nothing is timed", "allowed": []},
        ],
    }
    with client(lambda _: httpx.Response(422, json=problem)) as found, pytest.raises(ApiProblem) as raised:
        found.submit({})
    assert raised.value.status == 422
    assert [error["field"] for error in raised.value.errors] == ["/space/width", "/device", "/baselines"]
    lines = str(raised.value).splitlines()
    assert lines == [
        "Invalid input: nothing was created",
        "  /space/width = [3]: not a power of two (allowed: [1, 2, 4])",
        '  /device = "tpu": no such device (allowed: cpu)',
        '  /baselines = ["torch_eager"]: nothing is timed (nothing is allowed)',
    ]


@pytest.mark.parametrize(
    "response",
    [httpx.Response(200, text="<html>"), httpx.Response(502, text="bad gateway"), httpx.Response(200, json=[1])],
)
def test_what_is_not_a_tuner_is_unreachable(response: httpx.Response) -> None:
    with client(lambda _: response) as found, pytest.raises(ServiceUnreachable):
        found.job("job_1")


def test_looks_at_devices_are_waited_for_with_patience_and_not_without() -> None:
    answers = [
        {"items": [], "probing": True},
        {"items": [], "probing": True},
        {"items": [{"id": "x"}], "probing": False},
    ]
    with client(lambda _: httpx.Response(200, json=answers.pop(0))) as found:
        assert found.devices() == []
        assert found.devices(patience_seconds=30.0) == [{"id": "x"}]
    assert answers == []


def test_no_connection_is_unreachable_and_unhealthy() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    with client(refuse) as found:
        assert not found.healthy()
        assert found.readiness() is None
        with pytest.raises(ServiceUnreachable, match="refused"):
            found.jobs()


@pytest.mark.parametrize("url", ["", "localhost:8000", "ftp://x", "http://"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ServiceUnreachable, match="not the address"):
        Client(url)


def test_every_page_is_followed_with_the_same_filters() -> None:
    asked: list[dict[str, str]] = []

    def pages(request: httpx.Request) -> httpx.Response:
        asked.append(dict(request.url.params))
        last = "cursor" in request.url.params
        items = [{"id": "c"}] if last else [{"id": "a"}, {"id": "b"}]
        return httpx.Response(200, json={"items": items, "next": None if last else "next1", "total": 3})

    with client(pages) as found:
        trials = list(found.trials("job_1", outcome="rejected", sort="-width"))
    assert [trial["id"] for trial in trials] == ["a", "b", "c"]
    assert asked == [
        {"outcome": "rejected", "sort": "-width", "limit": "500"},
        {"outcome": "rejected", "sort": "-width", "limit": "500", "cursor": "next1"},
    ]


def test_a_limit_stops_in_mid_page() -> None:
    page = {"items": [{"id": "a"}, {"id": "b"}], "next": "more", "total": 9}
    with client(lambda _: httpx.Response(200, json=page)) as found:
        assert [trial["id"] for trial in found.trials("job_1", limit=3)] == ["a", "b", "a"]
        assert (len(jobs := found.jobs(limit=1)), jobs.total) == (1, 9)


def test_a_plan_gathers_all_pages_and_keeps_the_counts_of_the_first() -> None:
    def pages(request: httpx.Request) -> httpx.Response:
        assert json.loads(request.content) == {"cases": []}
        last = "cursor" in request.url.params
        body: dict[str, Any] = {"items": [{"n": 2 if last else 1}], "next": None if last else "x", "total": 2}
        return httpx.Response(200, json={**body, "cases": [{"enumerated": 2}]})

    with client(pages) as found:
        plan = found.plan({"cases": []})
    assert plan == {"items": [{"n": 1}, {"n": 2}], "next": None, "total": 2, "cases": [{"enumerated": 2}]}


def test_identifiers_are_data_in_a_path() -> None:
    seen: list[str] = []

    def note(request: httpx.Request) -> httpx.Response:
        seen.append(request.url.raw_path.decode())
        return httpx.Response(200, json={})

    with client(note) as found:
        found.trial("../jobs?x=1#y")
    assert seen == ["/v1/trials/..%2Fjobs%3Fx%3D1%23y"]


def test_a_lookup_names_the_whole_key() -> None:
    seen: list[dict[str, str]] = []

    def note(request: httpx.Request) -> httpx.Response:
        seen.append(dict(request.url.params))
        return httpx.Response(200, json={})

    with client(note) as found:
        found.winner(
            kernel="rms_norm",
            dims={"rows": 4, "cols": 8},
            dtypes={"x": "float32"},
            params={"eps": 1e-6},
            device="cpu",
            toolchain="any",
        )
    assert seen == [
        {
            "kernel": "rms_norm",
            "dims": "rows:4,cols:8",
            "dtypes": "x:float32",
            "params": "eps:1e-06",
            "device": "cpu",
            "toolchain": "any",
        }
    ]


def test_waiting_reports_every_state_and_outlives_a_restart() -> None:
    answers: list[Any] = ["queued", "running", None, None, 503, 503, "succeeded"]

    def next_answer(request: httpx.Request) -> httpx.Response:
        state = answers.pop(0)
        if state is None:
            raise httpx.ConnectError("restarting")
        if state == 503:  # its database restarts
            headers = {"Content-Type": "application/problem+json"}
            return httpx.Response(503, json={"title": "not now", "status": 503}, headers=headers)
        return httpx.Response(200, json={"state": state})

    seen: list[str] = []
    with client(next_answer) as found:
        job = found.wait("job_1", lambda job: seen.append(job["state"]), poll_seconds=0.0)
    assert job == {"state": "succeeded"}
    assert seen == ["queued", "running", "succeeded"]


def test_waiting_gives_up_on_a_service_that_stays_away() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("gone")

    with client(refuse) as found, pytest.raises(ServiceUnreachable):
        found.wait("job_1", poll_seconds=0.0, patience_seconds=0.0)
    away = {"title": "not now", "status": 503}
    headers = {"Content-Type": "application/problem+json"}
    with client(lambda _: httpx.Response(503, json=away, headers=headers)) as found, pytest.raises(ApiProblem):
        found.wait("job_1", poll_seconds=0.0, patience_seconds=0.0)
