"""What any request meets before a route: unknown paths, hosts, origins, sizes, query parameters, ids."""

from __future__ import annotations

import http.client
import json
import logging
import socket
import time
from typing import Any

import httpx
import pytest

from tuner_service.api.kinds import KINDS

IDS = ["nope", "job_", "..%2F..%2Fetc%2Fpasswd", "%00", "a" * 3000, "%F0%9F%92%A5", "%FF", "'%20OR%201=1--"]


def problem(response: httpx.Response, status: int, slug: str) -> dict[str, Any]:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    document: dict[str, Any] = response.json()
    assert document["type"] == f"/problems/{slug}"
    assert document["status"] == status
    return document


def test_an_unknown_path_is_a_problem(http: httpx.Client) -> None:
    problem(http.get("/v1/nothing"), 404, "not-found")
    problem(http.get("/v1/jobs/"), 404, "not-found")
    problem(http.get("/static/../settings.py"), 404, "not-found")
    problem(http.get("/static/%2e%2e/docs.py"), 404, "not-found")


def test_a_wrong_method_names_the_right_ones(http: httpx.Client) -> None:
    """All of them, for every path: those that the API documents, and pages and files beside it."""
    documented = {path: {m.upper() for m in item} for path, item in http.get("/openapi.json").json()["paths"].items()}
    assert documented["/v1/jobs"] == {"GET", "POST"}
    beside = {"/docs": {"GET"}, "/openapi.json": {"GET"}, "/static/docs.js": {"GET", "HEAD"}}
    for path, methods in {**documented, **beside}.items():
        for wrong in ("PATCH", "POST", "GET"):
            if wrong in methods:
                continue
            response = http.request(wrong, path.replace("{", "").replace("}", ""))
            detail = problem(response, 405, "method-not-allowed")["detail"]
            assert set(response.headers["allow"].split(", ")) == methods, path
            assert all(method in detail for method in methods)


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ("Content-Length: 5000", '{"cases": ['),
        ("Content-Length: 5000", ""),
        ("Transfer-Encoding: chunked", '5\r\n{"ca'),
    ],
)
def test_a_client_that_goes_away_in_mid_body_is_no_error(
    headers: str, body: str, served: Any, caplog: pytest.LogCaptureFixture
) -> None:
    before = served.job_count()
    caplog.set_level(logging.INFO)
    with socket.create_connection(("127.0.0.1", served.port)) as client:
        head = f"POST /v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n{headers}\r\n\r\n"
        client.sendall((head + body).encode())
    deadline = time.monotonic() + 30

    def ended() -> list[int]:
        return [vars(line)["status"] for line in caplog.records if vars(line).get("path") == "/v1/jobs"]

    while not (499 in ended() or time.monotonic() > deadline):
        time.sleep(0.01)
    assert 499 in ended()
    assert [line for line in caplog.records if line.levelno >= logging.WARNING or line.exc_info] == []
    assert served.job_count() == before


@pytest.mark.parametrize("identifier", IDS)
@pytest.mark.parametrize(
    "path",
    ["/v1/jobs/{}", "/v1/jobs/{}/trials", "/v1/trials/{}", "/v1/trials/{}/source", "/v1/kernels/{}", "/v1/devices/{}"],
)
def test_an_id_is_data(http: httpx.Client, path: str, identifier: str) -> None:
    problem(http.get(path.format(identifier)), 404, "not-found")


@pytest.mark.parametrize("path", ["/v1/jobs/job_x/events", "/v1/jobs/job_x/trials/export"])
def test_a_stream_of_nothing_is_a_problem_and_no_stream(http: httpx.Client, path: str) -> None:
    problem(http.get(path), 404, "not-found")


def test_cancelling_an_unknown_job_is_a_problem(http: httpx.Client) -> None:
    problem(http.post("/v1/jobs/job_x/cancel"), 404, "not-found")


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("stat=running", "/query/stat"),
        ("state=sleeping", "/query/state"),
        ("limit=0", "/query/limit"),
        ("limit=1001", "/query/limit"),
        ("limit=ten", "/query/limit"),
        ("limit=" + "9" * 5000, "/query/limit"),
        ("limit=1&limit=2", "/query/limit"),
        ("label=a%00b", "/query/label"),
        ("cursor=garbage", "/query/cursor"),
        ("cursor=W10", "/query/cursor"),
        ("cursor=" + "x" * 2000, "/query/cursor"),
    ],
)
def test_a_bad_query_parameter_is_named(http: httpx.Client, query: str, field: str) -> None:
    errors = problem(http.get(f"/v1/jobs?{query}"), 422, "invalid-request")["errors"]
    assert errors[0]["field"] == field
    assert errors[0]["message"]


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "localhost@evil", "", "::1", "127.0.0.1:x"])
def test_a_foreign_host_name_is_refused(served: Any, host: str) -> None:
    status, body = raw_get(served.port, host=host)
    assert status in (400, 421), body
    assert b"problems/" in body or status == 400


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:9", "LOCALHOST", "[::1]:8000", "127.0.0.7"])
def test_a_loopback_name_is_served(served: Any, host: str) -> None:
    assert raw_get(served.port, host=host)[0] == 200


def raw_get(port: int, *, host: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.putrequest("GET", "/healthz", skip_host=True)
        connection.putheader("Host", host)
        connection.endheaders()
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def test_pages_of_other_origins_are_refused(served: Any) -> None:
    own = f"http://127.0.0.1:{served.port}"
    assert served.http.get("/healthz", headers={"Origin": own}).status_code == 200
    for origin in ("https://evil.example", "null", f"http://127.0.0.1:{served.port + 1}", "https://[broken"):
        problem(served.http.post("/v1/plans", json={}, headers={"Origin": origin}), 403, "cross-origin")
    problem(served.http.post("/v1/plans", json={}, headers={"Sec-Fetch-Site": "cross-site"}), 403, "cross-origin")


def test_a_large_body_is_refused_by_its_length_and_while_it_streams(served: Any) -> None:
    limit = served.context.settings.max_body_bytes
    problem(served.http.post("/v1/jobs", content=b" " * (limit + 1)), 413, "body-too-large")
    # In chunks, without a length; the answer comes although the body never ends.
    with socket.create_connection(("127.0.0.1", served.port), timeout=10) as connection:
        connection.sendall(b"POST /v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n")
        chunk = b"x" * 65_536
        for _ in range(limit // len(chunk) + 1):
            connection.sendall(b"%x\r\n%s\r\n" % (len(chunk), chunk))
        answer = b""
        while b"body-too-large" not in answer:
            received = connection.recv(65_536)
            assert received, answer
            answer += received
    assert answer.startswith(b"HTTP/1.1 413")


def test_a_client_that_writes_all_of_a_large_body_first_still_reads_the_answer(served: Any) -> None:
    body = b" " * (10 << 20)
    for _ in range(3):  # without draining the connection is reset while the client still writes
        with socket.create_connection(("127.0.0.1", served.port), timeout=10) as connection:
            head = b"POST /v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
            connection.sendall(head % len(body) + body)
            answer = b""
            while received := connection.recv(65_536):
                answer += received
        assert answer.startswith(b"HTTP/1.1 413")
        assert b"body-too-large" in answer


def test_a_body_at_the_limit_is_read(served: Any) -> None:
    padding = served.context.settings.max_body_bytes - len(b"{}")
    problem(served.http.post("/v1/jobs", content=b"{}" + b" " * padding), 422, "invalid-request")


def test_a_request_id_is_kept_if_it_is_plain(http: httpx.Client) -> None:
    assert http.get("/healthz", headers={"X-Request-ID": "abc-1"}).headers["x-request-id"] == "abc-1"
    forged = http.get("/healthz", headers={"X-Request-ID": '"} {"level":'}).headers["x-request-id"]
    assert forged.startswith("req_")


def test_a_bug_of_ours_is_a_problem_with_the_request_id(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from tuner_service.api.routes import kernels

    def broken(name: str) -> dict[str, Any]:
        raise RuntimeError("secret detail")

    monkeypatch.setattr(kernels, "document", broken)
    response = served.http.get("/v1/kernels/softmax")
    document = problem(response, 500, "internal-error")
    assert document["instance"].endswith(response.headers["x-request-id"])
    assert "secret" not in response.text


def test_submitting_while_devices_are_probed_waits_and_then_says_so(served: Any) -> None:
    served.context.runtime.probed.clear()
    try:
        response = served.http.post("/v1/jobs", json={"cases": [{"kernel": "softmax", "dims": {"rows": 1, "cols": 1}}]})
        problem(response, 503, "not-ready")
        assert response.headers["retry-after"] == "1"
        listed = served.http.get("/v1/devices").json()
        assert (listed["items"], listed["probing"]) == ([], True)
        ready = served.http.get("/readyz")
        assert (ready.status_code, ready.json()["devices"]) == (200, "probing")
    finally:
        served.context.runtime.probed.set()


def test_every_kind_of_problem_has_its_page(http: httpx.Client) -> None:
    overview = http.get("/problems").text
    for kind in KINDS.values():
        page = http.get(kind.type_path)
        assert page.status_code == 200
        assert kind.title.split("'")[0] in page.text
        assert kind.type_path in overview
    problem(http.get("/problems/nope"), 404, "not-found")


def test_health_and_readiness(http: httpx.Client) -> None:
    assert http.get("/healthz").json()["status"] == "ok"
    assert http.get("/readyz").json() == {
        "ready": True,
        "database": "ok",
        "reason": None,
        "devices": "probed",
        "packages": [],
        "engine": "embedded",
        "leads": True,
        "workers": None,
    }


def test_answers_are_json_without_nan(http: httpx.Client) -> None:
    def refuse(word: str) -> None:
        raise AssertionError(word)

    json.loads(http.get("/v1/kernels").content, parse_constant=refuse)
