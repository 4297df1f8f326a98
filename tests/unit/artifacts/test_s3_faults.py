"""An S3 service that is busy, refuses, or is not there; and what the client wants to know before it starts."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "contract"))
from s3_server import BUCKET, S3Server, s3_server

from search.errors import ArtifactsUnavailable, InvalidInput
from tuner_service.artifacts.s3 import FIRST_PAUSE_SECONDS, TRIES, S3Blobs

NAME = "texts/" + "00" * 32


@pytest.fixture(scope="module")
def running() -> Iterator[S3Server]:
    with s3_server() as service:
        yield service


@pytest.fixture
def server(running: S3Server) -> S3Server:
    running.failures.clear()
    running.requests.clear()
    running.objects.clear()
    return running


def test_a_busy_service_is_asked_again_after_growing_pauses(server: S3Server) -> None:
    pauses: list[float] = []
    blobs = S3Blobs(f"s3://{BUCKET}", server.environment, pause=pauses.append)
    server.failures[:] = [503, 500, 429]
    blobs.put({NAME: b"x"})
    assert server.requests == [f"PUT /{BUCKET}/{NAME}"] * TRIES
    assert blobs.get(NAME, limit_bytes=9) == b"x"
    assert len(pauses) == TRIES - 1
    assert all(0.5 <= pause / (FIRST_PAUSE_SECONDS * 2**n) <= 1.0 for n, pause in enumerate(pauses))
    server.failures[:] = [503] * TRIES
    with pytest.raises(ArtifactsUnavailable, match=rf"s3://{BUCKET}: GET {NAME}: status 503"):
        blobs.get(NAME, limit_bytes=9)
    blobs.close()


@pytest.mark.parametrize(
    ("change", "bucket", "said"),
    [
        ({"AWS_SECRET_ACCESS_KEY": "not it"}, BUCKET, "status 403: <Error><Code>SignatureDoesNotMatch"),
        ({"AWS_REGION": "elsewhere"}, BUCKET, "status 403: <Error><Code>InvalidAccessKeyId"),
        ({}, "no-such-bucket", "status 404: <Error><Code>NoSuchBucket"),
    ],
)
def test_a_refusal_is_no_missing_object_and_is_not_tried_again(
    server: S3Server, change: dict[str, str], bucket: str, said: str
) -> None:
    blobs = S3Blobs(f"s3://{bucket}", server.environment | change)
    with pytest.raises(ArtifactsUnavailable, match=said):
        blobs.get(NAME, limit_bytes=9)
    with pytest.raises(ArtifactsUnavailable, match=said):
        blobs.put({NAME: b"x"})
    assert len(server.requests) == 2
    blobs.close()


def test_a_service_that_is_not_there_is_an_outage(server: S3Server) -> None:
    nowhere = server.environment | {"AWS_ENDPOINT_URL_S3": "http://127.0.0.1:9"}
    blobs = S3Blobs("s3://bucket/p", nowhere, pause=lambda seconds: None)
    with pytest.raises(ArtifactsUnavailable, match="ConnectError"):
        blobs.get(NAME, limit_bytes=9)
    blobs.close()


@pytest.mark.parametrize("variable", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"])
def test_a_missing_key_is_named(server: S3Server, variable: str) -> None:
    with pytest.raises(InvalidInput, match=variable):
        S3Blobs("s3://bucket", {**server.environment, variable: ""})


@pytest.mark.parametrize("endpoint", ["127.0.0.1:9000", "ftp://h", "http://h/path", "http://h?q"])
def test_an_endpoint_that_is_no_address_is_refused(server: S3Server, endpoint: str) -> None:
    with pytest.raises(InvalidInput, match="AWS_ENDPOINT_URL"):
        S3Blobs("s3://bucket", {**server.environment, "AWS_ENDPOINT_URL_S3": endpoint})
