"""A service that answers with given documents, over real HTTP, and remembers what it was asked."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

Answer = tuple[int, Any]
Route = Callable[[dict[str, str], Any], Answer]


class CannedService:
    """Routes by ``METHOD /path``; ``asked`` lists (method, path, query, body) in order."""

    def __init__(self) -> None:
        self.routes: dict[str, Route] = {}
        self.asked: list[tuple[str, str, dict[str, str], Any]] = []
        self.url = ""
        self.answer("GET /healthz", {"status": "ok"})
        self.answer("GET /readyz", {"ready": True, "database": "ok", "devices": "probed"})
        self.answer("GET /v1/devices", {"items": [device_document()], "next": None, "total": 1, "probing": False})
        self.answer("GET /v1/kernels/rms_norm", {"name": "rms_norm", "dims": ["rows", "cols"]})

    def answer(self, route: str, document: Any, *, status: int = 200) -> None:
        """Answer a route with one document."""
        self.routes[route] = lambda query, body: (status, document)

    def bodies(self, route: str) -> list[Any]:
        """The bodies that a route was sent."""
        return [body for method, path, _, body in self.asked if f"{method} {path}" == route]


@pytest.fixture
def service() -> Iterator[CannedService]:
    canned = CannedService()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            query = dict(parse_qsl(parts.query))
            canned.asked.append((self.command, parts.path, query, body))
            route = canned.routes.get(f"{self.command} {parts.path}")
            problem = {"title": "Not found", "status": 404, "detail": f"no {parts.path}", "errors": []}
            status, document = route(query, body) if route else (404, problem)
            data = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_POST = do_PUT = do_GET  # noqa: N815 - the standard library dispatches by these names

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    canned.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield canned
    server.shutdown()
    server.server_close()
    thread.join()


def device_document(**changes: Any) -> dict[str, Any]:
    return {
        "id": "cpu:0123456789ab",
        "kind": "cpu",
        "target": "cpu",
        "name": "Some CPU",
        "identity": {"model": "Some CPU"},
        "identity_digest": "1" * 64,
        "toolchain": {"gcc": "12"},
        "toolchain_fingerprint": "2" * 64,
        "available": True,
        "reason": None,
        **changes,
    }


def candidate_document(**changes: Any) -> dict[str, Any]:
    mapping = {"local_lanes": 32, "row_block": 1, "simd_scope": "all", "nontemporal": False}
    plain = {"width": 32, "vector": 1, "unroll": 1, "partials": 1, "input": "reload", "fusion": "separate"}
    return {**plain, "materialize": "private", "mapping": mapping, **changes}


def case_document(**changes: Any) -> dict[str, Any]:
    return {
        "kernel": "rms_norm",
        "params": {"eps": 1e-6},
        "dims": {"rows": 4, "cols": 33},
        "dtypes": {"x": "float32"},
        **changes,
    }


def phase_document(samples: list[float]) -> dict[str, Any]:
    return {"samples_seconds": samples, "median_seconds": sorted(samples)[len(samples) // 2], "calls_per_sample": 10}


def trial_document(trial_id: str = "trl_1", **changes: Any) -> dict[str, Any]:
    return {
        "id": trial_id,
        "job_id": "job_1",
        "case_index": 0,
        "case": case_document(),
        "candidate": candidate_document(),
        "in_space": True,
        "is_default": False,
        "outcome": "measured",
        "stage": None,
        "reason": None,
        "detail": None,
        "same_code_as": None,
        "overlapped": False,
        "plan": {"private_scalars": 0, "allocated_scalars": 0, "score": 4.0},
        "code": {"source_sha256": "a" * 64, "artifact_sha256": "b" * 64},
        "timing": {"device_batch": phase_document([3e-6, 2e-6, 4e-6]), "device_single": None},
        "checks": {"passed": True, "inputs": [], "guards_intact": True, "inputs_unchanged": True},
        **changes,
    }


def rejected_document(trial_id: str, *, stage: str = "constraints", reason: str = "private_budget") -> dict[str, Any]:
    detail = {"private_scalars": 129, "budget": 64}
    return trial_document(
        trial_id, outcome="rejected", stage=stage, reason=reason, detail=detail, code=None, timing=None, checks=None
    )


def job_document(state: str = "succeeded", **changes: Any) -> dict[str, Any]:
    winner = trial_document()
    done = state == "succeeded"
    case = {
        **case_document(),
        "state": "settled" if done else "running",
        "progress": {"enumerated": 3, "rejected": 1, "measured": 2, "checked": 0, "pending": 0, "not_run": 0},
        "winner": winner if done else None,
        "reference": winner if done else None,
        "default": trial_document("trl_0", is_default=True, in_space=False),
        "tie_set": ["trl_1", "trl_2"] if done else [],
        "inert_knobs": ["materialize"],
        "noise_floor": 0.02 if done else None,
        "regret": 0.05 if done else None,
        "baselines": {"torch_eager": {"median_seconds": 1e-5, "ratio": {"median": 0.3, "min": 0.25, "max": 0.35}}},
    }
    return {
        "id": "job_1",
        "state": state,
        "request": {"cases": [case_document()], "baselines": ["torch_eager"], "private_budget_scalars": 64},
        "device": device_document(),
        "progress": {"enumerated": 3, "rejected": 1, "measured": 2, "checked": 0, "pending": 0, "not_run": 0},
        "cases": [case],
        "error": None,
        "created_at": "2026-01-01T00:00:00Z",
        "started_at": "2026-01-01T00:00:01Z",
        "finished_at": "2026-01-01T00:00:02Z" if done else None,
        **changes,
    }


def listed_job(**changes: Any) -> dict[str, Any]:
    """A job as lists have it."""
    job = job_document()
    kept = ("id", "state", "progress", "error", "created_at", "started_at", "finished_at")
    about = {"kernels": ["rms_norm"], "case_count": 3, "settled_count": 3, "first_case": case_document()}
    return {**{word: job[word] for word in kept}, **about, **changes}


@pytest.fixture
def documents() -> SimpleNamespace:
    """Builders of documents as the service sends them."""
    return SimpleNamespace(
        device=device_document,
        candidate=candidate_document,
        case=case_document,
        phase=phase_document,
        trial=trial_document,
        rejected=rejected_document,
        job=job_document,
        listed_job=listed_job,
    )
