"""Health, readiness, and the pages about problems."""

from __future__ import annotations

import contextlib
import html
import re
from typing import Annotated

from fastapi import APIRouter, Path, Request
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from search.program.library import package_problems
from tuner_service.api import kinds, schemas
from tuner_service.api.context import Context, ContextOf
from tuner_service.api.documented import problems
from tuner_service.api.problems import ProblemError
from tuner_service.api.version import VERSION
from tuner_service.db.condition import condition
from tuner_service.errors import DatabaseProblem
from tuner_service.metrics import REGISTRY

router = APIRouter(tags=["system"])

PAGE_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; frame-ancestors 'none'"


@router.get(
    "/healthz",
    summary="Does the process answer?",
    response_model=None,
    responses={200: {"model": schemas.Health}, **problems()},
)
async def healthz() -> JSONResponse:
    """Does no I/O."""
    return JSONResponse({"status": "ok", "version": VERSION})


@router.get(
    "/readyz",
    summary="Can the service take jobs?",
    response_model=None,
    responses={
        200: {"model": schemas.Readiness},
        503: {"model": schemas.Readiness, "description": "Not yet, or not now; the members say which."},
        **problems(),
    },
)
def readyz(context: ContextOf) -> JSONResponse:
    """200 when `database` is `ok`; else it is `locked`, `full`, `unavailable` or `outdated` (not at this version's
    schema), and `reason` says more. `devices` is `probed`, or `probing` while they are still being looked for; jobs
    sent meanwhile wait a moment for it. `packages` says why an installed package's kernels are missing. `engine` is
    `embedded` or `postgres`; with the latter one of any number of processes `leads`, which is no condition for taking
    jobs, and `workers` says how many were heard of lately; without any, jobs wait."""
    database, reason = condition(context.database)
    devices = "probed" if context.runtime.wait_probed(0) else "probing"
    ready = database == "ok" and not context.closing.is_set()
    body = {
        "ready": ready,
        "database": database,
        "reason": reason,
        "devices": devices,
        "packages": [str(problem) for problem in package_problems()],
        "engine": context.settings.engine,
        "leads": context.runtime.leads,
        "workers": _workers(context),
    }
    return JSONResponse(body, status_code=200 if ready else 503)


@router.get(
    "/metrics",
    summary="Counters, times and gauges for Prometheus",
    response_class=PlainTextResponse,
    responses={200: {"description": "Prometheus' text format."}, **problems()},
)
def metrics(request: Request) -> Response:
    """What this process counted, and what is true of the whole deployment: jobs by state, queues, devices, workers.
    Workers have metrics of their own: `tuner worker --metrics-port`."""
    registry = CollectorRegistry()
    registry.register(request.app.state.gauges)
    text = generate_latest(REGISTRY) + generate_latest(registry)
    return Response(text, media_type=CONTENT_TYPE_LATEST)


@router.get(
    "/problems",
    summary="Kinds of problems",
    response_class=HTMLResponse,
    responses={200: {"description": "A page that lists them."}, **problems()},
)
def list_problem_pages() -> HTMLResponse:
    """Every `type` that a problem answer may carry."""
    rows = "".join(
        f"<li><a href='{kind.type_path}'>{html.escape(kind.slug)}</a> · {kind.status} · {html.escape(kind.title)}</li>"
        for kind in kinds.KINDS.values()
    )
    return _page("Kinds of problems", f"<h1>Kinds of problems</h1><ul>{rows}</ul>")


@router.get(
    "/problems/{slug}",
    summary="What a kind of problem means",
    response_class=HTMLResponse,
    responses={200: {"description": "A page about it."}, **problems(kinds.NOT_FOUND)},
)
def problem_page(
    slug: Annotated[str, Path(description="Last part of a problem's `type`.", examples=["invalid-request"])],
) -> HTMLResponse:
    """What it means and what to do; the same text as in `docs/problems`."""
    kind = kinds.KINDS.get(slug)
    if kind is None:
        raise ProblemError(kinds.NOT_FOUND, "there is no kind of problem of that name; /problems lists them")
    body = (
        f"<h1>{html.escape(kind.title)}</h1><p><code>{kind.type_path}</code> · HTTP status {kind.status}</p>"
        f"<h2>What it means</h2><p>{_inline(kind.meaning)}</p><h2>What to do</h2><p>{_inline(kind.remedy)}</p>"
    )
    return _page(kind.title, body)


def _workers(context: Context) -> int | None:
    with contextlib.suppress(DatabaseProblem):  # which `database` says
        return context.runtime.live_workers()
    return None


def _inline(text: str) -> str:
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text))


def _page(title: str, body: str) -> HTMLResponse:
    style = (
        ":root{color-scheme:light dark}body{font:16px/1.6 system-ui,sans-serif;max-width:44rem;margin:3rem auto;"
        "padding:0 1rem}code{font-size:.9em}"
    )
    document = (
        f"<!doctype html><html lang='en'><head><meta charset='utf-8'><title>{html.escape(title)}</title>"
        f"<meta name='viewport' content='width=device-width, initial-scale=1'><style>{style}</style></head>"
        f"<body>{body}<p><a href='/docs'>API</a> · <a href='/problems'>all kinds of problems</a></p></body></html>"
    )
    return HTMLResponse(document, headers={"Content-Security-Policy": PAGE_POLICY})
