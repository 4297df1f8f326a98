"""Health, readiness, and the pages about problems."""

from __future__ import annotations

import html
import re
from typing import Annotated

from fastapi import APIRouter, Path
from fastapi.responses import HTMLResponse, JSONResponse

from search.program.library import package_problems
from tuner_service.api import kinds, schemas
from tuner_service.api.context import ContextOf
from tuner_service.api.documented import problems
from tuner_service.api.problems import ProblemError
from tuner_service.api.version import VERSION
from tuner_service.db.condition import condition

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
    sent meanwhile wait a moment for it. `packages` says why an installed package's kernels are missing."""
    database, reason = condition(context.database)
    devices = "probed" if context.runtime.wait_probed(0) else "probing"
    ready = database == "ok" and not context.closing.is_set()
    packages = [str(problem) for problem in package_problems()]
    body = {"ready": ready, "database": database, "reason": reason, "devices": devices, "packages": packages}
    return JSONResponse(body, status_code=200 if ready else 503)


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
