"""Signature Version 4 against the worked examples of the S3 reference."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tuner_service.artifacts.sigv4 import Credentials, quoted_path, signed_headers

EXAMPLE = Credentials(access_key="AKIAIOSFODNN7EXAMPLE", secret_key="wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
GET = ("GET", "/test.txt", b"", {"Range": "bytes=0-9"})
PUT = (
    "PUT",
    "/test$file.text",
    b"Welcome to Amazon S3.",
    {"Date": "Fri, 24 May 2013 00:00:00 GMT", "x-amz-storage-class": "REDUCED_REDUNDANCY"},
)


@pytest.mark.parametrize(
    ("example", "signature"),
    [
        (GET, "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"),
        (PUT, "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd"),
    ],
)
def test_the_examples_of_the_reference(example: tuple[str, str, bytes, dict[str, str]], signature: str) -> None:
    method, path, body, headers = example
    sent = signed_headers(
        EXAMPLE,
        method=method,
        host="examplebucket.s3.amazonaws.com",
        path=quoted_path(path),
        region="us-east-1",
        body=body,
        moment=datetime(2013, 5, 24, tzinfo=UTC),
        headers=headers,
    )
    assert sent["authorization"].endswith(f"Signature={signature}")
    assert "Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request," in sent["authorization"]


def test_a_session_token_is_sent_and_signed_and_no_secret_is_shown() -> None:
    temporary = Credentials(access_key="A", secret_key="hidden", session_token="token")
    sent = signed_headers(
        temporary, method="GET", host="h", path="/", region="r", body=b"", moment=datetime(2026, 1, 1, tzinfo=UTC)
    )
    assert sent["x-amz-security-token"] == "token"
    assert "x-amz-date;x-amz-security-token," in sent["authorization"]
    assert "hidden" not in repr(temporary) + str(sent)
    assert "token" not in repr(temporary)
