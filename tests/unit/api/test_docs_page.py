"""``/docs`` shows every operation with files of ours alone: in a browser that can reach nothing else."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def test_the_page_names_no_other_address(http: httpx.Client) -> None:
    page = http.get("/docs")
    assert page.status_code == 200
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "http" not in policy
    addresses = re.findall(r"""(?:src|href)=["']([^"']+)""", page.text)
    assert len(addresses) >= 4
    for address in addresses:
        assert address.startswith("/"), address
        assert not address.startswith("//"), address
        answer = http.get(address)
        assert answer.status_code == 200, address
    assert "<script>" not in page.text


def test_the_vendored_files_come_with_license_and_version(http: httpx.Client) -> None:
    folder = "/static/vendor/swagger-ui"
    assert "Apache License" in http.get(f"{folder}/LICENSE").text
    assert re.search(r"version \d+\.\d+\.\d+", http.get(f"{folder}/LICENSE-NOTICE.txt").text)


@pytest.mark.skipif(CHROMIUM is None, reason="needs a chromium browser (Debian package chromium)")
def test_a_browser_without_internet_renders_every_operation(served: Any, tmp_path: Path) -> None:
    assert CHROMIUM is not None
    run = subprocess.run(
        [
            CHROMIUM,
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-background-networking",
            "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
            f"--user-data-dir={tmp_path}",
            "--virtual-time-budget=20000",
            "--dump-dom",
            f"http://127.0.0.1:{served.port}/docs",
        ],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    shown = set(re.findall(r'data-path="(/[^"]*)"', run.stdout))
    paths = set(served.http.get("/openapi.json").json()["paths"])
    assert paths <= {re.sub("\u200b", "", path) for path in shown}, run.stdout[-2000:]
    assert "Refused to" not in run.stderr
    assert "Start a tuning job" in run.stdout
