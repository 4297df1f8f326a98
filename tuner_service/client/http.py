"""One synchronous client of the HTTP API; every answer is the JSON document as the service sent it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote, urlsplit

import httpx

from tuner_service.client.errors import ApiProblem, ServiceUnreachable
from tuner_service.client.pages import Document, Listing, Pages

LOOPBACK_HOSTS = frozenset({"127.0.0.1", "::1", "localhost"})
TERMINAL_STATES = frozenset({"succeeded", "failed", "cancelled"})
REQUEST_TIMEOUT_SECONDS = 60.0
PLAN_TIMEOUT_SECONDS = 300.0
PRUNE_TIMEOUT_SECONDS = 3600.0
"""The last call reads what every trial refers to."""
SERVICE_UNAVAILABLE = 503
LOOK_POLL_SECONDS = 0.1
PLAN_PAGE_ITEMS = 20_000
"""Each page of a plan is planned anew by the service, so few large ones are cheaper."""


class Client:
    """Calls one service. Not thread-safe; use as a context manager or call :meth:`close`.

    Methods raise :class:`ApiProblem` when the service refuses and :class:`ServiceUnreachable` when it does not answer.
    """

    def __init__(self, url: str, *, transport: httpx.BaseTransport | None = None) -> None:
        self.url = url.rstrip("/")
        parts = urlsplit(self.url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ServiceUnreachable(f"{url!r} is not the address of a service; write it like http://127.0.0.1:8000")
        self._http = httpx.Client(
            base_url=self.url,
            timeout=REQUEST_TIMEOUT_SECONDS,
            transport=transport,
            # Without TLS no certificates are read: that takes longer than most requests.
            verify=parts.scheme == "https",
            # A proxy meant for the outside must not swallow calls to our own machine.
            trust_env=parts.hostname not in LOOPBACK_HOSTS,
            headers={"Accept": "application/json"},
        )

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    # Service

    def healthy(self) -> bool:
        """Whether a service answers at all; never raises."""
        try:
            return self._http.get("/healthz", timeout=2.0).status_code == 200
        except (httpx.HTTPError, OSError):
            return False

    def readiness(self) -> Document | None:
        """``{"ready", "database", "devices": "probed" | "probing"}`` whether ready or not; None without an answer."""
        try:
            document = self._http.get("/readyz", timeout=5.0).json()
        except (httpx.HTTPError, OSError, ValueError):
            return None
        return document if isinstance(document, dict) else None

    # Kernels and devices

    def kernels(self) -> list[Document]:
        """Every built-in kernel."""
        return list(self._document("GET", "/v1/kernels")["items"])

    def kernel(self, name: str) -> Document:
        """One built-in kernel: params, dims in declared order, dtypes, program."""
        return self._document("GET", f"/v1/kernels/{_segment(name)}")

    def devices(self, *, patience_seconds: float = 0.0) -> list[Document]:
        """Every attached device, also the unavailable ones with their reason.

        ``patience_seconds``: how long to wait for looks that go on, such as the first one at compile-only devices.
        """
        deadline = time.monotonic() + patience_seconds
        while True:
            page = self._document("GET", "/v1/devices")
            if not page.get("probing") or time.monotonic() >= deadline:
                return list(page["items"])
            time.sleep(LOOK_POLL_SECONDS)

    def device(self, device_id: str) -> Document:
        """One attached device, by id."""
        return self._document("GET", f"/v1/devices/{_segment(device_id)}")

    def quarantine_device(self, device_id: str, reason: str) -> Document:
        """Takes a device out of use; the device, and whether that ``changed`` anything."""
        return self._document("POST", f"/v1/devices/{_segment(device_id)}/quarantine", json={"reason": reason})

    def release_device(self, device_id: str) -> Document:
        """Lets a device in quarantine be used again; the device, and whether that ``changed`` anything."""
        return self._document("POST", f"/v1/devices/{_segment(device_id)}/release")

    def workers(self, *, limit: int | None = None, **filters: str) -> Listing:
        """Worker processes, the last started first; filters: state, host, device."""
        return Listing(self._pages("/v1/workers", filters, limit=limit))

    def forget_worker(self, worker_id: str) -> Document:
        """Remove a worker that is lost or gone; what was known of it."""
        return self._document("POST", f"/v1/workers/{_segment(worker_id)}/forget")

    def prune(self, request: Mapping[str, Any]) -> Document:
        """Remove jobs that ended long ago; the answer says whether the same call again would find more."""
        return self._document("POST", "/v1/prune", json=request, timeout=PRUNE_TIMEOUT_SECONDS)

    # Plans and jobs

    def plan(self, request: Mapping[str, Any]) -> Document:
        """Dry run of a job request: ``items`` are all its trials, ``planned`` or ``rejected``; measures nothing."""
        first: Document = {}
        items: list[Any] = []
        cursor: str | None = None
        while True:
            params: dict[str, Any] = {"limit": PLAN_PAGE_ITEMS}
            if cursor is not None:
                params["cursor"] = cursor
            page = self._document("POST", "/v1/plans", json=request, params=params, timeout=PLAN_TIMEOUT_SECONDS)
            first = first or page
            items += page["items"]
            cursor = page.get("next")
            if not cursor:
                return {**first, "items": items, "next": None}

    def submit(self, request: Mapping[str, Any], *, idempotency_key: str | None = None) -> Document:
        """Start a tuning job; the answer is the job."""
        return self._document("POST", "/v1/jobs", json=request, headers=_once(idempotency_key))

    def jobs(self, *, limit: int | None = None, **filters: str) -> Listing:
        """Jobs without their cases, newest first; filters: state, kernel, device, label."""
        return Listing(self._pages("/v1/jobs", filters, limit=limit))

    def job(self, job_id: str) -> Document:
        """One job with progress, best so far and, per case, its results."""
        return self._document("GET", f"/v1/jobs/{_segment(job_id)}")

    def job_case(self, job_id: str, case_index: int) -> Document:
        """One case of a job, complete: its ``retimes`` too."""
        return self._document("GET", f"/v1/jobs/{_segment(job_id)}/cases/{case_index}")

    def cancel(self, job_id: str) -> Document:
        """Stop a job: queued work is withdrawn, running children are killed."""
        return self._document("POST", f"/v1/jobs/{_segment(job_id)}/cancel")

    def wait(
        self,
        job_id: str,
        on_progress: Callable[[Document], None] | None = None,
        *,
        poll_seconds: float = 1.0,
        patience_seconds: float = 60.0,
    ) -> Document:
        """Wait until the job has ended; the answer is the job.

        ``on_progress`` gets every state seen. A service that goes away, or that answers 503 because its database did,
        is waited for ``patience_seconds``: jobs survive the restart of either.
        """
        return self._wait(lambda: self.job(job_id), on_progress, poll_seconds, patience_seconds)

    def wait_acceptance(
        self,
        acceptance_id: str,
        on_progress: Callable[[Document], None] | None = None,
        *,
        poll_seconds: float = 1.0,
        patience_seconds: float = 60.0,
    ) -> Document:
        """Wait until the replay has ended, as :meth:`wait` does for a job."""
        return self._wait(lambda: self.acceptance(acceptance_id), on_progress, poll_seconds, patience_seconds)

    def _wait(
        self,
        read: Callable[[], Document],
        on_progress: Callable[[Document], None] | None,
        poll_seconds: float,
        patience_seconds: float,
    ) -> Document:
        gone_since: float | None = None
        while True:
            try:
                job = read()
            except (ServiceUnreachable, ApiProblem) as error:
                if isinstance(error, ApiProblem) and error.status != SERVICE_UNAVAILABLE:
                    raise
                now = time.monotonic()
                gone_since = now if gone_since is None else gone_since
                if now - gone_since >= patience_seconds:
                    raise
            else:
                gone_since = None
                if on_progress is not None:
                    on_progress(job)
                if job["state"] in TERMINAL_STATES:
                    return job
            time.sleep(poll_seconds)

    # Trials and winners

    def trials(self, job_id: str, *, limit: int | None = None, **query: Any) -> Pages:
        """Trials of a job, all pages; query: outcome, stage, reason, kernel, width, input, is_default, sort."""
        return self._pages(f"/v1/jobs/{_segment(job_id)}/trials", query, limit=limit)

    def trial(self, trial_id: str) -> Document:
        """One trial: plan, code facts, raw samples, checks, or its rejection."""
        return self._document("GET", f"/v1/trials/{_segment(trial_id)}")

    def source(self, trial_id: str) -> Document:
        """What is needed to rebuild a trial by hand: TileLang text, C text, header, build command."""
        return self._document("GET", f"/v1/trials/{_segment(trial_id)}/source")

    def winner(
        self,
        *,
        dims: Mapping[str, int],
        kernel: str | None = None,
        program: Document | None = None,
        dtypes: Mapping[str, str] | None = None,
        params: Mapping[str, float | int] | None = None,
        device: str | None = None,
        toolchain: str | None = None,
        catalog: str | None = None,
        cache_context: str | None = None,
    ) -> Document:
        """Exact lookup of a winner, in a frozen catalog (alias or digest) if one is named.

        By the name of a built-in kernel or of a program that was sent, or by a program's document. A miss is an
        :class:`ApiProblem` 404 with ``reason`` and ``misses``.
        """
        if program is not None:
            asked: Document = {"program": program, "dims": dims, "dtypes": dtypes, "params": params}
            asked |= {"device": device, "toolchain": toolchain, "catalog": catalog, "cache_context": cache_context}
            body = {name: value for name, value in asked.items() if value is not None}
            return self._document("POST", "/v1/winners", json=body)
        if kernel is None:
            raise TypeError("winner() takes a kernel's name or a program")
        query: dict[str, str] = {"kernel": kernel, "dims": _pairs(dims)}
        for name, pairs in (("dtypes", dtypes), ("params", params)):
            if pairs:
                query[name] = _pairs(pairs)
        where = {"device": device, "toolchain": toolchain, "catalog": catalog, "cache_context": cache_context}
        query |= {name: value for name, value in where.items() if value is not None}
        return self._document("GET", "/v1/winners", params=query)

    # Catalogs

    def freeze(
        self, jobs: Sequence[str], *, cases: Sequence[Document] = (), labels: Mapping[str, str] | None = None
    ) -> Document:
        """Freeze finished jobs: ``{"candidate", "reference", "left_out"}``."""
        body = {"jobs": list(jobs), "cases": list(cases), "labels": dict(labels or {})}
        return self._document("POST", "/v1/catalogs", json=body)

    def catalogs(self, *, limit: int | None = None, **filters: str) -> Listing:
        """Summaries of catalogs, newest first; filter: role."""
        return Listing(self._pages("/v1/catalogs", filters, limit=limit))

    def catalog(self, digest: str) -> Document:
        """One catalog, complete."""
        return self._document("GET", f"/v1/catalogs/{_segment(digest)}")

    def accept(
        self, digest: str, *, rounds: int = 4, alias: str = "prod", idempotency_key: str | None = None
    ) -> Document:
        """Start the replay of a candidate catalog; the answer is the acceptance."""
        body = {"rounds": rounds, "alias": alias}
        path = f"/v1/catalogs/{_segment(digest)}/acceptances"
        return self._document("POST", path, json=body, headers=_once(idempotency_key))

    def acceptance(self, acceptance_id: str) -> Document:
        """One acceptance: progress, and its verdict once it has one."""
        return self._document("GET", f"/v1/acceptances/{_segment(acceptance_id)}")

    def cancel_acceptance(self, acceptance_id: str) -> Document:
        """Stop a replay."""
        return self._document("POST", f"/v1/acceptances/{_segment(acceptance_id)}/cancel")

    def evidence(self, acceptance_id: str) -> Document:
        """The evidence bundle of an acceptance that has a verdict."""
        return self._document("GET", f"/v1/acceptances/{_segment(acceptance_id)}/evidence")

    def aliases(self) -> list[Document]:
        """The manifest of every alias."""
        return list(self._document("GET", "/v1/aliases")["items"])

    def alias(self, name: str) -> Document:
        """The manifest of one alias."""
        return self._document("GET", f"/v1/aliases/{_segment(name)}")

    def promote(self, name: str, digest: str) -> Document:
        """Have an alias name an accepted catalog; the answer is the manifest."""
        return self._document("PUT", f"/v1/aliases/{_segment(name)}", json={"digest": digest})

    def rollback(self, name: str, *, idempotency_key: str | None = None) -> Document:
        """Take an alias one promotion back; the answer is the manifest."""
        return self._document("POST", f"/v1/aliases/{_segment(name)}/rollback", headers=_once(idempotency_key))

    # Transport

    def _pages(self, path: str, query: Mapping[str, Any], *, limit: int | None) -> Pages:
        return Pages(lambda page: self._document("GET", path, params=page), query, limit=limit)

    def _document(self, method: str, path: str, **options: Any) -> Document:
        try:
            response = self._http.request(method, path, **options)
        except (httpx.HTTPError, OSError) as error:
            raise ServiceUnreachable(f"no answer from {self.url}: {error}") from error
        try:
            document = response.json()
        except ValueError:
            document = None
        if response.is_error:
            if isinstance(document, dict) and "title" in document:
                raise ApiProblem({"status": response.status_code, **document})
            raise ServiceUnreachable(f"{self.url} answered {response.status_code} without a problem document")
        if not isinstance(document, dict):
            raise ServiceUnreachable(f"{self.url} did not answer {path} with JSON; is it a tuner?")
        return document


def _once(idempotency_key: str | None) -> dict[str, str]:
    return {"Idempotency-Key": idempotency_key} if idempotency_key is not None else {}


def _segment(identifier: str) -> str:
    return quote(identifier, safe="")


def _pairs(pairs: Mapping[str, Any]) -> str:
    return ",".join(f"{name}:{value}" for name, value in pairs.items())
